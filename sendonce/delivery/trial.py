"""Test letters: a small campaign of its own that goes the way of every other, at once and alone.

It is sealed like a loaded one (`test-TARGET-…`), so that its letters take permits, have intents and outcomes, obey
suppressions and guards, and show in `list`, `status` and `outcome`. Nothing else that is due is sent with it. A job
that runs at the same time may take it first; that is the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Optional

import orjson

from schemas.ids import address_key, attempt_id, shard_of
from schemas.outcomes import Outcome
from schemas.tables import Batch, Campaign, Recipient, TemplateContent
from sendonce.addresses import BadAddress, normalise
from sendonce.control.campaigns import RUNNING, get_campaign
from sendonce.control.completion import settle_campaign
from sendonce.control.faults import ControlFault, NotForStreams, UnknownRecipient
from sendonce.control.guards import campaign_obstacle
from sendonce.control.stream_names import STREAM
from sendonce.control.unsubscribe import newest_key
from sendonce.delivery import batches
from sendonce.delivery.deliver import Clocks, Deliverer
from sendonce.delivery.halting import halt_campaign, release_senders
from sendonce.delivery.lanes import RunningLane, running_lanes
from sendonce.delivery.letters import SnapshotFault, compiled_for, element_of, encodable, render
from sendonce.delivery.protocol import queueing
from sendonce.delivery.terms import Move, batch_key
from sendonce.rendering.catalogue import TemplateSource, example_variables, manifest_of, to_row
from sendonce.rendering.faults import TemplateFault
from sendonce.stores.base import Store, Tx
from sendonce.stores.opening import store_key

ADDRESSES_MAX: Final = 20
# What of a campaign's options says how its letters are made.
_KEPT: Final = ("reply_to", "unsubscribe_base_url", "unsubscribe_key", "list")
_LOOK_AGAIN_S: Final = 0.5


class BadTrial(ControlFault):
    """Test letters that cannot be sent as asked. Holds no address."""

    reason = "bad_test"


@dataclass(frozen=True)
class Letter:
    """What a test letter is made of. values: template variables as JSON; options: those of a campaign."""

    name: str
    priority: str
    from_address: str
    template: str
    template_hash: str
    content: Optional[TemplateSource]
    options: dict[str, Any]
    locale: str
    timezone: str
    values: str


def of_template(source: TemplateSource, *, from_address: str, unsubscribe_base_url: str, store: Store) -> Letter:
    """A template with its examples."""
    manifest = manifest_of(source)
    options = {
        "reply_to": manifest.reply_to,
        "unsubscribe_base_url": unsubscribe_base_url,
        "unsubscribe_key": store.read(newest_key),
    }
    return Letter(
        name=source.name,
        priority=manifest.priority,
        from_address=manifest.from_address or from_address,
        template=source.name,
        template_hash=source.template_hash,
        content=source,
        options=options,
        locale=manifest.default_locale,
        timezone=manifest.default_timezone,
        values=orjson.dumps(example_variables(manifest), default=str).decode(),
    )


def of_campaign(store: Store, campaign_id: str, recipient_id: Optional[str] = None) -> Letter:
    """A campaign's letter as one of its recipients would get it (its first, unless one is named).

    UnknownCampaign; UnknownRecipient; NotForStreams.
    """
    campaign = get_campaign(store, campaign_id)
    if campaign.kind == STREAM:
        raise NotForStreams(campaign_id, "test-send")

    def look(reader: Any) -> list[Recipient]:
        if recipient_id is not None:
            return list(reader.scan(Recipient, campaign_id, recipient_id, index="snapshot_by_recipient", limit=1))
        return list(reader.scan(Recipient, shard_of(campaign_id, 0), campaign_id, 0, limit=1))

    found = store.read(look)
    if not found:
        raise UnknownRecipient(campaign_id)
    options = orjson.loads(campaign.options)
    return Letter(
        name=campaign_id,
        priority=campaign.priority,
        from_address=campaign.from_address,
        template=campaign.template,
        template_hash=campaign.template_hash,
        content=None,
        options={name: options[name] for name in _KEPT if name in options},
        locale=found[0].locale,
        timezone=found[0].timezone,
        values=found[0].template_variables,
    )


def seal_trial(store: Store, letter: Letter, addresses: Sequence[str], by: str, clocks: Clocks) -> str:
    """Write a running campaign of one batch, one recipient for each address (`test-1`, …); returns its id.

    BadTrial for an address that is none, too many, or no address to send from; NotReady as for `submit`.
    """
    if not 1 <= len(addresses) <= ADDRESSES_MAX:
        raise BadTrial(f"{len(addresses)} addresses; a test goes to 1 to {ADDRESSES_MAX}")
    if not letter.from_address:
        raise BadTrial("no address to send from; set `from` in sendonce.yaml or in the template")
    key = store_key(store)
    wires = [_address(raw, number) for number, raw in enumerate(addresses, 1)]
    campaign_id = f"test-{letter.name[:60]}-{attempt_id(clocks.wall_ms(), clocks.randomness(10)).lower()}"
    shard, size = shard_of(campaign_id, 0), len(wires)

    def work(tx: Tx) -> None:
        now = tx.now()
        campaign = Campaign(
            campaign_id=campaign_id,
            kind="campaign",
            state=RUNNING,
            priority=letter.priority,
            sender="",
            from_address=letter.from_address,
            template=letter.template,
            template_hash=letter.template_hash,
            options=orjson.dumps({**letter.options, "test_of": letter.name}, option=orjson.OPT_SORT_KEYS).decode(),
            snapshot_hash="",
            recipients=size,
            batches=1,
            created_at=now,
            created_by=by,
            changed_at=now,
            changed_by=by,
            sealed_at=now,
            started_at=now,
        )
        if (obstacle := campaign_obstacle(tx, campaign)) is not None:
            raise obstacle
        if letter.content is not None and tx.get(TemplateContent, letter.template_hash) is None:
            tx.put(to_row(letter.content, now, by))
        tx.insert(campaign)
        tx.insert(
            Batch(
                shard,
                campaign_id,
                0,
                size,
                letter.timezone,
                batches.PENDING,
                batches.PENDING,
                now,
                bytes(size),
                n_open=size,
            )
        )
        tx.insert(
            *(
                Recipient(
                    shard,
                    campaign_id,
                    0,
                    ordinal,
                    f"test-{ordinal + 1}",
                    wire,
                    address_key(key, key_form),
                    letter.locale,
                    letter.timezone,
                    letter.values,
                )
                for ordinal, (wire, key_form) in enumerate(wires)
            )
        )

    store.transact(work, tag="trial")
    return campaign_id


def send_trial(
    store: Store, campaign_id: str, clocks: Clocks, sleep: Callable[[float], object], patience_s: float
) -> list[Outcome]:
    """Deliver a sealed trial now, waiting for permits as long as patience lasts; each recipient's outcome, in order.

    OPEN: not sent in time, a job or `sendonce run` sends it. ConfigFault, TemplateFault, StoreError as in a job.
    """
    campaign = get_campaign(store, campaign_id)
    lane = running_lanes(store, (campaign.priority,))[campaign.priority]
    release_senders(store, [lane.terms.sender])
    until_s = clocks.own_s() + patience_s
    try:
        while True:
            wait_until = _deliver(store, lane, campaign_id, clocks)
            batch, now = _look(store, campaign_id)
            left_s = until_s - clocks.own_s()
            if batch.n_open == 0 or batch.n_in_doubt or left_s <= 0:
                break
            due_s = (max(wait_until or batch.due_at, now) - now).total_seconds()
            sleep(min(left_s, max(0.01, min(due_s, _LOOK_AGAIN_S))))
    finally:
        lane.sender.close()
    settle_campaign(store, campaign_id)
    return [Outcome(code) for code in batch.outcomes]


def _deliver(store: Store, lane: RunningLane, campaign_id: str, clocks: Clocks) -> Optional[datetime]:
    """One try, if the batch is due and nobody else has it. Answers when the next one makes sense, if that is known."""
    references = store.transact(lambda tx: queueing.plan(tx, lane.terms, campaign_id, [0]), tag="plan")
    if not references:
        return None
    (reference,) = references
    try:
        rendered = render(store, store_key(store), reference, lambda name: compiled_for(store, name))
    except (TemplateFault, SnapshotFault) as fault:
        halt_campaign(store, reference, str(fault))
        raise
    if rendered is None:
        return None
    letters, at = encodable(rendered[0]), rendered[1]
    owner = Deliverer(store, lane.sender, lane.terms, "test-send", clocks, lambda again: (letters, at))
    delivery = owner.deliver(element_of(reference, letters, at))
    if delivery.move is Move.HOLD:
        due_at = delivery.until or at
        store.transact(lambda tx: queueing.release(tx, reference, due_at), tag="release")
    return delivery.until


def _look(store: Store, campaign_id: str) -> tuple[Batch, datetime]:
    found = store.read(lambda reader: (reader.get(Batch, *batch_key(campaign_id, 0)), reader.now()))
    assert found[0] is not None
    return found[0], found[1]


def _address(raw: str, number: int) -> tuple[str, str]:
    try:
        return normalise(raw)
    except BadAddress as fault:
        raise BadTrial(f"address {number} is none: {fault.reason}; write one like ann@shop.example") from None
