"""From a reference to letters: read a batch's open recipients, leave out the suppressed, render the rest."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import orjson

from schemas.elements import Reference, RenderedBatch
from schemas.ids import message_id, own_recipient_id
from schemas.letters import FormLetter, Letters, Refusal, dump, encoded
from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import Batch, Campaign, Recipient, TemplateContent
from sendonce.control.guards import campaign_obstacle, guards_in
from sendonce.control.pushed_templates import from_of
from sendonce.control.stream_names import STREAM
from sendonce.control.suppressions import lists_of, suppressed
from sendonce.control.unsubscribe import Links, links_of
from sendonce.delivery import batches
from sendonce.delivery.terms import Rendered, batch_key
from sendonce.moments import from_micros, to_micros
from sendonce.rendering.catalogue import from_row
from sendonce.rendering.render import Addressee, Compiled, compile_template, render_batch
from sendonce.stores.base import Reader, Store

# Over this size only the reference travels to the send step, which renders again.
LETTERS_BYTES_MAX = 1_000_000


class SnapshotFault(Exception):
    """A batch whose snapshot or template is not in the store as it was sealed. The campaign halts."""

    reason = "snapshot_fault"


class TemplateGone(SnapshotFault):
    """The template that a batch is pinned to is not in the store."""


class NotAllowed(SnapshotFault):
    """Letters that must not go out as things are, though the campaign started: settings changed since. It halts."""

    reason = "not_allowed"


@dataclass(frozen=True)
class _Found:
    """A batch as it is read for rendering, all at one moment. left_out: open ordinals that get no letter, and why."""

    batch: Batch
    campaign: Campaign
    people: list[Recipient]
    left_out: dict[int, tuple[Outcome, str]]
    links: Links
    redirect_to: str
    at: datetime


def compiled_for(reader_of: Store, template_hash: str) -> Compiled:
    """The compiled template of a hash, read from the store the first time that this process needs it."""
    row = reader_of.read(lambda reader: reader.get(TemplateContent, template_hash))
    if row is None:
        raise TemplateGone(
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
    batch, campaign, people = found.batch, found.campaign, found.people
    if len(people) != batch.size:
        raise SnapshotFault(
            f"batch {batch.batch_no} of {campaign.campaign_id} has {len(people)} of its {batch.size} recipients; "
            "restore the store from a backup, or load the campaign again under a new id"
        )
    wanted = set(batches.open_ordinals(batch)) | set(unpack(batch.intent_ordinals or b""))
    names = {person.ordinal: message_id(key, campaign.campaign_id, person.recipient_id) for person in people}
    template = compiled(batch.template_hash or campaign.template_hash)
    from_address, reply_to = head_of(campaign, template)
    letters = render_batch(
        template,
        [
            addressee(person, names[person.ordinal], found.links, found.redirect_to)
            for person in people
            if person.ordinal in wanted and person.ordinal not in found.left_out
        ],
        campaign_id=campaign.campaign_id,
        from_address=from_address,
        reply_to=reply_to,
    )
    left_out = [
        Refusal(ordinal, names[ordinal], int(outcome), detail) for ordinal, (outcome, detail) in found.left_out.items()
    ]
    return replace(letters, refusals=letters.refusals + left_out), found.at


def head_of(campaign: Campaign, template: Compiled) -> tuple[str, str]:
    """The addresses that a batch's letters come from and are answered to ("" for none)."""
    if campaign.kind == STREAM:  # each send is pinned to a template of its own
        return from_of(template.manifest, campaign.from_address), template.manifest.reply_to
    return campaign.from_address, orjson.loads(campaign.options).get("reply_to", "")


def addressee(person: Recipient, name: str, links: Links, redirect_to: str = "") -> Addressee:
    """What rendering needs to know of a recipient. name: its message id; redirect_to: where the letter goes instead."""
    return Addressee(
        ordinal=person.ordinal,
        message_id=name,
        recipient_id=own_recipient_id(person.recipient_id),
        to=redirect_to or person.email,
        locale=person.locale,
        timezone=person.timezone,
        variables=person.template_variables,
        unsubscribe_url=links.link_for(person),
    )


def _read(reader: Reader, reference: Reference) -> _Found | None:
    batch = reader.get(Batch, *batch_key(reference.campaign_id, reference.batch_no))
    campaign = reader.get(Campaign, reference.campaign_id)
    if batch is None or campaign is None or batch.plan_no != reference.plan_no:
        return None
    if batch.state not in (batches.QUEUED, batches.IN_DOUBT):
        return None
    if (obstacle := campaign_obstacle(reader, campaign)) is not None:
        raise NotAllowed(str(obstacle))
    people = reader.scan(Recipient, batch.shard, batch.campaign_id, batch.batch_no)
    # What is in doubt was intended before any suppression, and is repeated as it was.
    open_people = [person for person in people if batch.outcomes[person.ordinal] == Outcome.OPEN]
    options, guards = orjson.loads(campaign.options), guards_in(reader)
    left_out = {
        person.ordinal: (Outcome.SKIPPED_NOT_ALLOWED, "not among recipients_allowed")
        for person in open_people
        if not guards.allows(person.email)
    }
    for ordinal, outcome in suppressed(reader, open_people, lists_of(options)).items():
        left_out[ordinal] = (outcome, outcome.reason)
    return _Found(batch, campaign, people, left_out, links_of(reader, options), guards.redirect_to, reader.now())


# In the place of a form letter that nobody gets: the numbers of the others stay.
_NOBODYS = FormLetter("", 0, "", "", "")


def encodable(letters: Letters) -> Letters:
    """The letters without those that no encoding can carry (lone surrogates): their recipients are refused instead."""
    refusals = list(letters.refusals)
    sound = []
    for letter in letters.letters:
        form = [] if letter.form is None else [letters.forms[letter.form]]
        if _encodes(replace(letters, letters=[letter], refusals=[], forms=form)):
            sound.append(letter)
        else:
            detail = "the letter holds a character that cannot be encoded"
            refusals.append(Refusal(letter.ordinal, letter.message_id, int(Outcome.RENDER_ERROR), detail))
    used = {letter.form for letter in sound}
    forms = [form if number in used else _NOBODYS for number, form in enumerate(letters.forms)]
    return replace(letters, letters=sound, refusals=sorted(refusals, key=lambda one: one.ordinal), forms=forms)


def _encodes(letters: Letters) -> bool:
    try:
        dump(letters)
    except TypeError:
        return False
    return True


def element_of(reference: Reference, letters: Letters, at: datetime) -> RenderedBatch:
    """What travels to the send step. TypeError for letters with a text that no encoding can carry."""
    body = dump(letters)
    return _element(reference, at, body if len(body) <= LETTERS_BYTES_MAX else None)


def element_without(reference: Reference, letters: Letters, at: datetime) -> RenderedBatch:
    """What travels where the letters need not: they stay in this process. TypeError as `element_of` raises it."""
    encoded(letters)
    return _element(reference, at, None)


def _element(reference: Reference, at: datetime, body: bytes | None) -> RenderedBatch:
    return RenderedBatch(
        campaign_id=reference.campaign_id,
        batch_no=reference.batch_no,
        plan_no=reference.plan_no,
        priority=reference.priority,
        rendered_at_us=to_micros(at),
        letters=body,
    )


def facts_of(letters: Letters, at: datetime, lists: tuple[str, ...]) -> Rendered:
    """What the protocol needs to know of a rendered batch."""
    outcomes = {refusal.ordinal: Outcome(refusal.outcome) for refusal in letters.refusals}
    names = {letter.ordinal: letter.message_id for letter in letters.letters}
    names.update((refusal.ordinal, refusal.message_id) for refusal in letters.refusals)
    details = {refusal.ordinal: refusal.detail for refusal in letters.refusals}
    return Rendered(at, outcomes, names, details, lists)


def rendered_at(element: RenderedBatch) -> datetime:
    return from_micros(element.rendered_at_us)
