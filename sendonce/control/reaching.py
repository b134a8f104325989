"""Whether the providers of senders can be reached from here, found without sending anything."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sendonce.config import ConfigFault, SenderSettings
from sendonce.control.findings import Finding, from_text
from sendonce.control.stops import mend_of
from sendonce.senders.base import Reachable
from sendonce.senders.making import make_sender

# Long for an answer from anywhere, short for a person who waits.
WITHIN_S: Final = 8.0


def reach_senders(senders: Sequence[SenderSettings], within_s: float = WITHIN_S) -> Iterator[Finding]:
    """A look at each provider, side by side: connected to, secured, logged in at where that is a step of its own.

    Letters are not begun. What a provider or a network says is told by reason and step, never in its own words.
    """
    if not senders:
        return
    with ThreadPoolExecutor(len(senders), thread_name_prefix="reach") as pool:
        for found in pool.map(lambda settings: _reach(settings, within_s), senders):
            yield from found


def _reach(settings: SenderSettings, within_s: float) -> list[Finding]:
    what = f"sender {settings.name}"
    try:
        sender = make_sender(settings)
    except ConfigFault as fault:
        return [from_text(what, problem) for problem in fault.problems]
    try:
        if not isinstance(sender, Reachable):
            return []
        reached = sender.reach(within_s)
    finally:
        sender.close()
    if not reached.reason:
        return [Finding("ok", what, reached.told)]
    return [Finding("fail", what, reached.told, mend_of(reached.reason))]
