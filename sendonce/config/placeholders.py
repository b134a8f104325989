"""Addresses from examples where real letters would go out: nobody can answer them, and no link to them works.

Who the letters go to is no matter of this: recipients are people's business.
"""

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from sendonce.addresses import domain_of, is_placeholder
from sendonce.config.adapters.account import SenderSettings
from sendonce.config.model import Config
from sendonce.config.urls import is_loopback

_WHY: Final = "in a domain that is for examples and that nobody can own (RFC 2606)"


def address_problem(address: str) -> str:
    """Why nobody can be written to, nor answer, at an address (with or without a name); empty if somebody may."""
    domain = domain_of(address)
    return f"is {address}, {_WHY}" if domain and is_placeholder(domain) else ""


def link_problem(base_url: str) -> str:
    """Why no recipient can follow a link that begins so; empty if one may."""
    host = urlsplit(base_url).hostname or ""
    if host and is_placeholder(host) and host != "localhost":
        return f"is {base_url}, {_WHY}"
    return f"is {base_url}, which is this machine only" if is_loopback(host) else ""


def reaches_people(sender: SenderSettings) -> bool:
    """Whether letters by a sender leave this machine, as far as the settings say.

    Not for sure by what stands on this machine (a relay, or a provider made for tests) or in a domain for examples.
    """
    found = sender.endpoint()
    nearby = found is not None and (is_loopback(found[0]) or is_placeholder(found[0]))
    return sender.adapter != "outbox" and not nearby


def placeholders(config: Config) -> Iterator[str]:
    """Settings that only examples may have, each with its problem and its mend."""
    if config.from_address and (problem := address_problem(config.from_address)):
        yield f"from {problem}; set it to an address of your own, or take it out where every template has its own"
    if config.unsubscribe is not None and (problem := link_problem(config.unsubscribe.base_url)):
        yield (
            f"unsubscribe.base_url {problem}; set it to the https address at which `sendonce web --unsubscribe` is "
            "reached from outside"
        )


def used_senders(config: Config) -> list[SenderSettings]:
    """The senders that some lane sends by, each once."""
    names = dict.fromkeys(name for lane in config.lanes.values() for name in lane.senders())
    return [config.senders[name] for name in names]
