"""Judges a simulated run: the checker's invariants, and what only the simulation saw."""

import math
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from schemas import ids, ordinals
from schemas.outcomes import KIND_OF
from schemas.tables import TABLES, Attempt, Batch, Decision, Recipient
from tests.checker import Arrivals, Findings, Violation, judge
from tests.evidence import Arrival, Records
from tests.fakes import START
from tests.simulator.campaign import CAMPAIGN, KEY
from tests.simulator.world import World


def judged(world: World) -> Findings:
    """Every violation of a run that was played to its end."""
    records = Records(world.real.read(lambda reader: {kind: reader.scan(kind) for kind in TABLES}))
    letters = world.log.accepted
    requests = None
    if world.setup.jumps:
        # Decisions and intents are dated by the store; limits count the time that really passed.
        requests = [
            Arrivals(one.campaign_id, one.at, 1, one.provider, one.message_id)
            for one in letters
            if one.attempt_id not in world.watch.late
        ]
        letters = [replace(one, at=_in_store_time(world, one)) for one in letters]
    findings = judge(
        records,
        letters,
        now=world.store_now() + timedelta(seconds=1),
        ended=True,
        requests=requests,
        late_requests=world.watch.late,
        intended=world.store.intended,
    )
    # A repeat that stood still between its last check and the socket until the provider's window was over: nobody
    # but the provider could still tell it from a new request. Listed as late, like every pause there (I7).
    finite = world.setup.window_s is not None and not math.isinf(world.setup.window_s)
    kept = [
        violation
        for violation in findings.violations
        if not (finite and violation.invariant == "I2" and any(late in violation.what for late in world.watch.late))
    ]
    more = [
        *_seen(world),
        *_outside(world, records),
        *_decided_once(records),
        *_refused_though_taken(world, records),
        *world.changed,
    ]
    return replace(findings, violations=[*kept, *more])


def _in_store_time(world: World, letter: Arrival) -> datetime:
    return world.store_times[letter.place]


def _seen(world: World) -> Iterator[Violation]:
    for attempt in world.watch.unfenced:
        yield Violation("I4", f"attempt {attempt}", "began after others took its batch")
    asked = {action.attempt_id for action in world.log.actions if action.what == "called"}
    for attempt in sorted(asked - world.store.intended.keys()):
        yield Violation("I3", f"attempt {attempt}", "a request without an intent", "phantoms")
    for attempt in world.watch.beside_probe:
        yield Violation("breaker", f"attempt {attempt}", "granted beside a probe")


def _refused_though_taken(world: World, records: Records) -> Iterator[Violation]:
    """The checker excuses every letter of an attempt that was late once; here each call is known."""
    batches = {row.batch_no: row for row in records.of(Batch)}
    people = {ids.message_id(KEY, CAMPAIGN, row.recipient_id): row for row in records.of(Recipient)}
    again = {row.batch_no for row in records.of(Decision) if row.kind in ("resend", "retry")}
    for letter in world.log.accepted:
        person = people[letter.message_id]
        code = batches[person.batch_no].outcomes[person.ordinal]
        if KIND_OF[code] == "refused" and person.batch_no not in again and letter.place not in world.watch.late_places:
            where = f"batch {person.batch_no} ordinal {person.ordinal}"
            yield Violation("I3", where, f"taken by attempt {letter.attempt_id}, and on record as refused", "phantoms")


def _outside(world: World, records: Records) -> Iterator[Violation]:
    """Requests that were intended before the campaign's start, after its end, or while it was stopped."""
    setup, intended = world.setup, dict(world.store.intended)
    for row in records.of(Attempt):
        intended.setdefault(row.attempt_id, row.started_at)
    for attempt, began in intended.items():
        where = f"attempt {attempt}"
        started = [trigger for trigger in world.people.triggers if trigger.kind == "start"]
        if setup.starts_s is not None and not started and began < START + timedelta(seconds=setup.starts_s):
            yield Violation("I9", where, "intended before the campaign's start")
        if setup.ends_s is not None and began >= START + timedelta(seconds=setup.ends_s):
            yield Violation("I9", where, "intended after the campaign's end")
        for stop in world.watch.stops:
            if stop.since < began < stop.until:
                yield Violation("I9", where, f"intended while it was stopped ({stop.why}, since {stop.since})")


def _decided_once(records: Records) -> Iterator[Violation]:
    """However many settle a doubt at once, and wherever they die: whoever was in it is decided about once."""
    seen: set[tuple[str | None, int]] = set()
    for row in records.of(Decision):
        if row.kind in ("resend", "assume"):
            places = {(row.attempt_id, ordinal) for ordinal in ordinals.unpack(row.ordinals or b"")}
            if places & seen:
                yield Violation(
                    "decision", f"attempt {row.attempt_id}", f"decided about twice, the second time {row.kind}"
                )
            seen |= places
