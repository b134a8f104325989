"""From a reference to letters: read a batch's open recipients, leave out the suppressed, render the rest."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from schemas.elements import Reference, RenderedBatch
from schemas.ids import message_id
from schemas.letters import Letters, Refusal, dump
from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import Batch, Campaign, Recipient, TemplateContent
from sendonce.control.suppressions import lists_of, suppressed
from sendonce.delivery import batches
from sendonce.delivery.terms import Rendered, batch_key
from sendonce.rendering.catalogue import from_row
from sendonce.rendering.render import Addressee, Compiled, compile_template, render_batch
from sendonce.stores.base import Reader, Store

# Over this size only the reference travels to the send step, which renders again.
LETTERS_BYTES_MAX = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class SnapshotFault(Exception):
    """A batch whose snapshot or template is not in the store as it was sealed. The campaign halts."""


def compiled_for(reader_of: Store, template_hash: str) -> Compiled:
    """The compiled template of a hash, read from the store the first time that this process needs it."""
    row = reader_of.read(lambda reader: reader.get(TemplateContent, template_hash))
    if row is None:
        raise SnapshotFault(
            f"the template {template_hash[:12]} is not in the store; load the campaign again under a new id"
        )
    return compile_template(from_row(row))


def render(
    store: Store, key: bytes, reference: Reference, compiled: Callable[[str], Compiled]
) -> tuple[Letters, datetime] | None:
    """The letters of a batch's open ordinals (and of its intent, if that is in doubt), and the store time of reading.

    None when the reference is stale. Refusals hold the suppressed too: everyone who was open is in the result.
    TemplateFault and SnapshotFault are faults of the whole campaign.
    """
    found = store.read(lambda reader: _read(reader, reference))
    if found is None:
        return None
    batch, campaign, people, out, now = found
    if len(people) != batch.size:
        raise SnapshotFault(
            f"batch {batch.batch_no} of {campaign.campaign_id} has {len(people)} of its {batch.size} recipients; "
            "restore the store from a backup, or load the campaign again under a new id"
        )
    options = orjson.loads(campaign.options)
    wanted = set(batches.open_ordinals(batch)) | set(unpack(batch.intent_ordinals or b""))
    names = {person.ordinal: message_id(key, campaign.campaign_id, person.recipient_id) for person in people}
    letters = render_batch(
        compiled(batch.template_hash or campaign.template_hash),
        [
            addressee(person, names[person.ordinal], options)
            for person in people
            if person.ordinal in wanted and person.ordinal not in out
        ],
        campaign_id=campaign.campaign_id,
        from_address=campaign.from_address,
        reply_to=options.get("reply_to", ""),
    )
    struck = [Refusal(ordinal, names[ordinal], int(outcome), outcome.reason) for ordinal, outcome in out.items()]
    return replace(letters, refusals=letters.refusals + struck), now


def addressee(person: Recipient, name: str, options: dict[str, Any]) -> Addressee:
    """What rendering needs to know of a recipient. name: its message id; options: the campaign's."""
    return Addressee(
        ordinal=person.ordinal,
        message_id=name,
        recipient_id=person.recipient_id,
        to=person.email,
        locale=person.locale,
        timezone=person.timezone,
        variables=person.template_variables,
        unsubscribe_url=unsubscribe_url(options, name),
    )


def unsubscribe_url(options: dict[str, Any], message: str) -> str:
    """The link of one message: the message id names person and campaign, and tells nobody who that is."""
    base = options.get("unsubscribe_base_url", "")
    return f"{base}/{message}" if base else ""


def _read(
    reader: Reader, reference: Reference
) -> tuple[Batch, Campaign, list[Recipient], dict[int, Outcome], datetime] | None:
    batch = reader.get(Batch, *batch_key(reference.campaign_id, reference.batch_no))
    campaign = reader.get(Campaign, reference.campaign_id)
    if batch is None or campaign is None or batch.plan_no != reference.plan_no:
        return None
    if batch.state not in (batches.QUEUED, batches.IN_DOUBT):
        return None
    people = reader.scan(Recipient, batch.shard, batch.campaign_id, batch.batch_no)
    # What is in doubt was intended before any suppression, and is repeated as it was.
    open_people = [person for person in people if batch.outcomes[person.ordinal] == Outcome.OPEN]
    out = suppressed(reader, open_people, lists_of(orjson.loads(campaign.options)))
    return batch, campaign, people, out, reader.now()


def element_of(reference: Reference, letters: Letters, at: datetime) -> RenderedBatch:
    """What travels to the send step."""
    body = dump(letters)
    return RenderedBatch(
        campaign_id=reference.campaign_id,
        batch_no=reference.batch_no,
        plan_no=reference.plan_no,
        priority=reference.priority,
        rendered_at_us=(at - _EPOCH) // timedelta(microseconds=1),
        letters=body if len(body) <= LETTERS_BYTES_MAX else None,
    )


def facts_of(letters: Letters, at: datetime, lists: tuple[str, ...]) -> Rendered:
    """What the protocol needs to know of a rendered batch."""
    outcomes = {refusal.ordinal: Outcome(refusal.outcome) for refusal in letters.refusals}
    names = {letter.ordinal: letter.message_id for letter in letters.letters}
    names.update((refusal.ordinal, refusal.message_id) for refusal in letters.refusals)
    return Rendered(at, outcomes, names, lists)


def rendered_at(element: RenderedBatch) -> datetime:
    return _EPOCH + timedelta(microseconds=element.rendered_at_us)
