"""Faults that every recipient would share stop a campaign or a sender until they are mended. Nobody is refused.

A stream is no campaign of one template and one list: what is wrong with one of its sends ends that send alone.
"""

from collections.abc import Iterable
from dataclasses import replace

from schemas.elements import Reference
from schemas.outcomes import Outcome
from schemas.tables import Batch, Campaign, Switch
from sendonce.control.stream_names import STREAM
from sendonce.delivery.protocol import closing, queueing
from sendonce.stores.base import Store, Tx


def halt_campaign(store: Store, reference: Reference, reason: str) -> bool:
    """Running -> halted, with the reason that `status` shows; False when the campaign was not running.

    reference: the batch at which the fault showed; if nobody claimed it yet it goes back to the store, so that
    `resume` makes it run again at once. Nothing is refused: a fault of ours is nobody's outcome.
    """
    return store.transact(lambda tx: _halt(tx, tx.get(Campaign, reference.campaign_id), reference, reason), tag="halt")


def _halt(tx: Tx, campaign: Campaign | None, reference: Reference, reason: str) -> bool:
    queueing.release(tx, reference, tx.now())
    if campaign is None or campaign.state != "running":
        return False
    tx.put(replace(campaign, state="halted", state_reason=reason, changed_at=tx.now(), changed_by="system"))
    return True


def give_up(store: Store, key: bytes, reference: Reference, detail: str, outbound_log: str) -> Batch | bool | None:
    """What is wrong with a batch ends it if it is a send, and halts its campaign otherwise.

    Returns the send's row if it was ended here, None if it is another's now (its lease or its next plan goes on with
    it), and for a campaign whether it was halted here.
    """

    def work(tx: Tx) -> Batch | bool | None:
        campaign = tx.get(Campaign, reference.campaign_id)
        if campaign is not None and campaign.kind == STREAM:
            return closing.refuse(tx, key, reference, Outcome.RENDER_ERROR, detail, outbound_log)
        return _halt(tx, campaign, reference, detail)

    return store.transact(work, tag="give_up")


def unforeseen(fault: Exception, doing: str, batch_no: int) -> str:
    """A reason for a fault that no rule names: its kind and place. Its own words may hold personal data."""
    return f"{type(fault).__name__} while {doing} batch {batch_no}: a fault of this release, please report it"


def release_senders(store: Store, senders: Iterable[str]) -> list[str]:
    """End the halts of senders, because somebody who could mend them starts a job; returns the names released.

    A sender that is not mended halts again at its first request, and spends no try. What a person stopped stays so.
    """

    def work(tx: Tx) -> list[str]:
        halts = [tx.get(Switch, f"sender:{name}") for name in senders]
        halted = [halt for halt in halts if halt is not None and halt.kind == "halted"]
        tx.delete(*halted)
        return [halt.scope.removeprefix("sender:") for halt in halted]

    return store.transact(work, tag="release_senders")
