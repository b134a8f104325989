"""Which addresses letters and secrets may be posted to."""

import re
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

_CONTROL_ESCAPE: Final = re.compile(r"%(?:25)*(?:[01][0-9a-f]|7f)", re.IGNORECASE)


def base_url_problem(url: str) -> str:
    """Why a base URL may not be posted to, or an empty string."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        return "cannot be read as an address; write it like https://api.provider.example"
    if not url.isascii() or not url.isprintable() or " " in url:
        return "must be plain ASCII without spaces"
    if _CONTROL_ESCAPE.search(url) or "<" in url or ">" in url:
        return "must hold no encoded line break or control character, and no angle bracket"
    if parts.username or parts.query or parts.fragment:
        return "must hold no user, query or fragment"
    if parts.scheme == "https" and host:
        return ""
    if parts.scheme == "http" and is_loopback(host):
        return ""
    return "must be an https address (http only for this machine), like https://api.provider.example"


def endpoint_of(url: str) -> tuple[str, int]:
    """Host and port of a URL without a problem, as `base_url_problem` means it."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def is_loopback(host: str) -> bool:
    """Whether a host name can only mean this machine (RFC 6761 6.3 for `localhost`)."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
