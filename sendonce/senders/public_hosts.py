"""Which IP addresses a request may go to whose host somebody else has a say in (server-side request forgery).

By IANA's registries of special-purpose addresses
(https://www.iana.org/assignments/iana-ipv4-special-registry, https://www.iana.org/assignments/iana-ipv6-special-registry)
and not by `ipaddress.is_global`, whose answer for several of them changed between releases of Python.
"""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

_NOT_PUBLIC_4: Final = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this host; Linux connects 0.0.0.0 to itself
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared by carriers, and where some clouds keep their metadata (100.100.100.200)
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's own services for its machines: public by its number, not by what it is
        "169.254.0.0/16",  # link-local, with the metadata of most clouds (169.254.169.254)
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
# All unicast that is routed (RFC 4291 2.4, IANA's allocations); loopback, link-local and fd00::/8 are outside it.
_UNICAST_6: Final = IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them, which carries an IPv4 address
        "2001:db8::/32",
        "2002::/16",  # 6to4, which carries an IPv4 address
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)
# What stands for an IPv4 address, in its last 32 bits: NAT64's well-known prefix (RFC 6052) and mapped addresses.
_CARRIES_4: Final = (IPv6Network("64:ff9b::/96"), IPv6Network("::ffff:0:0/96"))


def is_public(address: str) -> bool:
    """Whether an IP address is one of the public internet's. What is no IP address is not."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    if isinstance(found, IPv6Address):
        if any(found in network for network in _CARRIES_4):
            found = IPv4Address(int(found) & 0xFFFFFFFF)
        else:
            return found in _UNICAST_6 and not any(found in network for network in _NOT_PUBLIC_6)
    return not any(found in network for network in _NOT_PUBLIC_4)
