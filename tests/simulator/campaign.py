"""The simulated campaign: its rows, its lane's terms, and what rendering would give."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import orjson

from schemas import ids
from schemas.elements import Reference
from schemas.letters import FormLetter, Letter, Letters, Refusal, slot_key
from schemas.ordinals import unpack
from schemas.outcomes import Outcome, tally
from schemas.tables import Batch, Campaign, Recipient, Setting, Suppression
from sendonce.config import Lane
from sendonce.control.expiry import with_end
from sendonce.control.schedule import with_start
from sendonce.delivery import batches
from sendonce.delivery.terms import Terms, batch_key
from sendonce.mailboxes import DomainGroups
from sendonce.stores.base import Reader, Store
from sendonce.times import Times
from tests.fakes import START
from tests.simulator.setups import GROUPS, Setup

CAMPAIGN = "simulated"
# The store's.
KEY = bytes(range(32))
DOMAINS = ("one.example", "slow.example", "mx.scarce.example", "slow.example")
# No idle time: a doubt waits for its policy for hours, and the simulation jumps there.
TIMES = Times(0.2, 5.0, 2.0, 6.0, 2.0, 2.0, 6.0, 1.0)


def terms_of(setup: Setup) -> Terms:
    terms = Terms(
        lane="bulk",
        sender="fake",
        provider="fake",
        scopes=("lane:bulk", "sender:fake", *(("warmup:fake",) if setup.groups else ())),
        groups=DomainGroups(GROUPS) if setup.groups else None,
        times=TIMES,
        asks_again_s=setup.window_s,
        outbound_log=setup.outbound_log,
    )
    if setup.fallback:
        backup = replace(terms, sender="backup", provider="backup", scopes=("lane:bulk", "sender:backup"))
        terms = replace(terms, fallback=backup)
    return terms


def rows_of(setup: Setup) -> list[Any]:
    """The store as the loader, and then whoever submitted the campaign, left it."""
    lane = Lane(name="bulk", sender="fake", in_doubt=setup.in_doubt, outbound_log=setup.outbound_log)  # type: ignore[arg-type]
    rows: list[Any] = [
        *setup.limits,
        Setting("lane", "bulk", lane.model_dump_json(), START, "test"),
        *(
            Setting("domain", name, orjson.dumps({"name": name, "domains": domains}).decode(), START, "test")
            for name, domains in (GROUPS.items() if setup.groups else ())
        ),
    ]
    for batch_no in range(setup.batches):
        shard = ids.shard_of(CAMPAIGN, batch_no)
        codes = bytes(setup.batch_size)
        rows.append(
            Batch(
                shard, CAMPAIGN, batch_no, len(codes), "UTC", "pending", "pending", START, codes,
                **{f"n_{kind}": count for kind, count in tally(codes).items()},  # type: ignore[arg-type]
            )
        )  # fmt: skip
        rows += [
            Recipient(
                shard, CAMPAIGN, batch_no, ordinal, f"r{batch_no}-{ordinal}",
                f"r{batch_no}-{ordinal}@{DOMAINS[(batch_no + ordinal) % len(DOMAINS)]}",
                f"k{batch_no}-{ordinal}", "en", "UTC", "{}",
            )
            for ordinal in range(len(codes))
        ]  # fmt: skip
    rows.append(_campaign(setup))
    return rows


def _campaign(setup: Setup) -> Campaign:
    ready = Campaign(
        CAMPAIGN, "campaign", "ready", "bulk", "fake", "news@shop.example", "t", "h", "{}", "s",
        setup.batches * setup.batch_size, setup.batches, START, "test", START, "test", sealed_at=START,
    )  # fmt: skip
    if setup.ends_s is not None:
        ready = with_end(ready, START + timedelta(seconds=setup.ends_s))
    start = None if setup.starts_s is None else START + timedelta(seconds=setup.starts_s)
    return replace(with_start(ready, start, START, moves=True), state="running")


def render(store: Store, reference: Reference, greeting: str = "Hello") -> tuple[Letters, datetime] | None:
    """What rendering would give to those who are open, or in the doubt that may be asked again: two form letters, and
    one recipient in seven refused. None for a stale reference. greeting: what makes the bytes others than before.
    """

    def read(reader: Reader) -> Any:
        place = batch_key(reference.campaign_id, reference.batch_no)
        people = reader.scan(Recipient, *place)
        gone = {row.address_key for row in reader.scan(Suppression)}
        return reader.get(Batch, *place), people, gone, reader.now()

    batch, people, gone, now = store.read(read)
    if batch is None or batch.plan_no != reference.plan_no:
        return None
    forms = [FormLetter("p", 1, greeting, f"{number} {slot_key('p', 0)}", "") for number in range(2)]
    letters: list[Letter] = []
    refusals: list[Refusal] = []
    wanted = {*batches.open_ordinals(batch), *unpack(batch.intent_ordinals or b"")}
    for person in people:
        if person.ordinal not in wanted:
            continue
        name = ids.message_id(KEY, CAMPAIGN, person.recipient_id)
        if person.address_key in gone and batch.outcomes[person.ordinal] == Outcome.OPEN:
            refusals.append(Refusal(person.ordinal, name, int(Outcome.SUPPRESSED_UNSUBSCRIBED), ""))
        elif (person.batch_no * 31 + person.ordinal) % 7 == 3:
            refusals.append(Refusal(person.ordinal, name, int(Outcome.RENDER_ERROR), "render.error"))
        else:
            letters.append(Letter(person.ordinal, name, person.email, "", person.ordinal % 2, [person.recipient_id]))
    return Letters("news@shop.example", "", forms, letters, refusals), now
