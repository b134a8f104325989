"""Faults that every recipient would share stop a campaign or a sender until they are mended. Nobody is refused."""

from collections.abc import Iterable
from dataclasses import replace

from schemas.elements import Reference
from schemas.tables import Campaign, Switch
from sendonce.delivery import protocol
from sendonce.stores.base import Store, Tx


def halt_campaign(store: Store, reference: Reference, reason: str) -> bool:
    """Running -> halted, with the reason that `status` shows; False when the campaign was not running.

    reference: the batch at which the fault showed; if nobody claimed it yet it goes back to the store, so that
    `resume` makes it run again at once. Nothing is refused: a fault of ours is nobody's outcome.
    """

    def work(tx: Tx) -> bool:
        campaign = tx.get(Campaign, reference.campaign_id)
        protocol.release(tx, reference, tx.now())
        if campaign is None or campaign.state != "running":
            return False
        tx.put(replace(campaign, state="halted", state_reason=reason, changed_at=tx.now(), changed_by="system"))
        return True

    return store.transact(work, tag="halt")


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
