"""Rendering everything that a campaign would send, and sending nothing.

The letters are those of `delivery.letters`: what fails here would be refused when it is sent.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import orjson

from schemas.ids import message_id, shard_of
from schemas.letters import Letters
from schemas.outcomes import Outcome
from schemas.tables import Campaign, Recipient
from sendonce.control.campaigns import READY, get_campaign
from sendonce.control.faults import NotForStreams
from sendonce.control.last_rehearsal import LastRehearsal, with_rehearsal
from sendonce.control.outcomes import batch_numbers
from sendonce.control.stream_names import STREAM
from sendonce.control.unsubscribe import links_of
from sendonce.delivery.letters import addressee, compiled_for
from sendonce.rendering.catalogue import speaks
from sendonce.rendering.render import render_batch
from sendonce.stores.base import Store, Tx
from sendonce.stores.opening import store_key

# Gmail hides the rest of a message whose HTML is larger: senders' guides say 102 KB, a trial found 105 KB
# (https://www.spamresource.com/2022/01/what-is-gmail-clipping-and-what-to-do.html).
GMAIL_SHOWS_BYTES: Final = 102 * 1024


@dataclass(frozen=True)
class Failure:
    """A recipient who would get no letter. reason: machine-readable. detail: without personal data."""

    recipient_id: str
    batch: int
    ordinal: int
    reason: str
    detail: str


@dataclass
class Rehearsal:
    """Sums so far. forms: different form letters. packed: letters that are a form letter and values; the others go

    whole. text_bytes: of all letters as they would be read. largest: bytes of the largest letter, and whose it is.
    clipped: letters of which Gmail shows only the beginning. default_language: recipients by locale, of those that the
    template does not speak: they get its default language.
    """

    recipients: int
    rendered: int = 0
    packed: int = 0
    failed: int = 0
    text_bytes: int = 0
    largest_bytes: int = 0
    largest_recipient: str = ""
    clipped: int = 0
    by_reason: dict[str, int] = field(default_factory=dict)
    default_language: dict[str, int] = field(default_factory=dict)
    _forms: set[bytes] = field(default_factory=set)

    @property
    def forms(self) -> int:
        return len(self._forms)

    @property
    def whole(self) -> int:
        return self.rendered - self.packed


def rehearse(
    store: Store, campaign_id: str, seen: Callable[[Rehearsal, list[Failure]], None] = lambda sums, failures: None
) -> Rehearsal:
    """Render every recipient of a loaded campaign, batch by batch, one batch in memory at a time.

    Of a campaign that is not started yet, the result is kept, so that whoever starts it is told (`last_rehearsal`).

    seen: called after each batch with the sums so far and that batch's failures. UnknownCampaign; NotForStreams;
    TemplateFault and SnapshotFault for what would halt the whole campaign.
    """
    campaign = get_campaign(store, campaign_id)
    if campaign.kind == STREAM:
        raise NotForStreams(campaign_id, "rehearse")
    key = store_key(store)
    compiled = compiled_for(store, campaign.template_hash)
    options = orjson.loads(campaign.options)
    links = store.read(lambda reader: links_of(reader, options))
    sums = Rehearsal(campaign.recipients)
    for batch_no in batch_numbers(store, campaign_id):
        people = _people(store, campaign, batch_no)
        letters = render_batch(
            compiled,
            [addressee(person, message_id(key, campaign_id, person.recipient_id), links) for person in people],
            campaign_id=campaign_id,
            from_address=campaign.from_address,
            reply_to=options.get("reply_to", ""),
        )
        for person in people:
            if not speaks(compiled.source, person.locale):
                sums.default_language[person.locale] = sums.default_language.get(person.locale, 0) + 1
        seen(sums, _add(sums, batch_no, {person.ordinal: person.recipient_id for person in people}, letters))
    _keep(store, campaign_id, sums)
    return sums


def _keep(store: Store, campaign_id: str, sums: Rehearsal) -> None:
    def work(tx: Tx) -> None:
        campaign = tx.get(Campaign, campaign_id)
        if campaign is not None and campaign.state == READY:
            tx.put(with_rehearsal(campaign, LastRehearsal(tx.now(), sums.rendered, sums.failed)))

    store.transact(work, tag="rehearsed")


def _people(store: Store, campaign: Campaign, batch_no: int) -> list[Recipient]:
    name = campaign.campaign_id
    return store.read(lambda reader: reader.scan(Recipient, shard_of(name, batch_no), name, batch_no))


def _add(sums: Rehearsal, batch_no: int, names: dict[int, str], letters: Letters) -> list[Failure]:
    for form in letters.forms:
        text = "\x00".join((form.subject, form.text, form.html))
        sums._forms.add(hashlib.blake2b(text.encode(), digest_size=16).digest())
    for letter in letters.letters:
        subject_bytes, plain_bytes, html_bytes = (len(part.encode()) for part in letters.texts(letter))
        size = subject_bytes + plain_bytes + html_bytes
        sums.rendered += 1
        sums.packed += letter.form is not None
        sums.text_bytes += size
        sums.clipped += html_bytes > GMAIL_SHOWS_BYTES
        if size > sums.largest_bytes:
            sums.largest_bytes, sums.largest_recipient = size, names[letter.ordinal]
    failures = [
        Failure(names[found.ordinal], batch_no, found.ordinal, Outcome(found.outcome).reason, found.detail)
        for found in letters.refusals
    ]
    sums.failed += len(failures)
    for failure in failures:
        sums.by_reason[failure.reason] = sums.by_reason.get(failure.reason, 0) + 1
    return failures
