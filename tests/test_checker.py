"""The checker finds every fault that is planted in a sound store and provider log, and finds none in sound ones.

One campaign, two batches. Batch 0 is done: two accepted by attempt A0, one refused at render. Batch 1 took two
attempts: the first was not sent, the second accepted.
"""

import hashlib
import sqlite3
from collections.abc import Callable
from dataclasses import astuple, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas import ids, ordinals
from schemas.outcomes import KINDS, Outcome, tally
from schemas.tables import (
    TABLES,
    AsideDoubt,
    Attempt,
    Batch,
    Campaign,
    Decision,
    Limit,
    Meta,
    OutboundMessage,
    Progress,
    Recipient,
    Setting,
    Suppression,
)
from tests.checker import Arrivals, Findings, changes, judge
from tests.evidence import EPOCH, Arrival, Records, read_outbox, read_sqlite

KEY = bytes(range(32))
T0 = datetime(2026, 1, 15, 9, 0, tzinfo=UTC)
NOW = T0 + timedelta(minutes=5)
OUTCOMES = {0: bytes((2, 2, 64)), 1: bytes((2, 2))}
RUNS = {0: [("A0", "accepted", (0, 1))], 1: [("B0", "not_sent", (0, 1)), ("B1", "accepted", (0, 1))]}


def second(number: float) -> datetime:
    return T0 + timedelta(seconds=number)


def person(batch_no: int, ordinal: int) -> str:
    return f"r{batch_no}{ordinal}"


def message(batch_no: int, ordinal: int) -> str:
    return ids.message_id(KEY, "spring", person(batch_no, ordinal))


class World:
    """A sound run; tests spoil one thing of it."""

    def __init__(self) -> None:
        self.rows: dict[type, list[Any]] = {kind: [] for kind in TABLES}
        self.letters: list[Arrival] = []
        self.rows[Meta] = [Meta("key", KEY)]
        self.rows[Setting] = [Setting("lane", "bulk", '{"outbound_log": "rows"}', T0, "test")]
        self.rows[Campaign] = [
            Campaign(
                "spring",
                "campaign",
                "completed",
                "bulk",
                "outbox",
                "news@shop.example",
                "hello",
                "hash",
                "{}",
                "snapshot",
                5,
                2,
                T0,
                "test",
                second(4),
                "test",
                sealed_at=T0,
            )
        ]
        for batch_no, codes in OUTCOMES.items():
            self._batch(batch_no, codes)
        counts = {f"n_{kind}": count for kind, count in tally(b"".join(OUTCOMES.values())).items()}
        self.rows[Progress] = [Progress("spring", NOW, 5, **counts, **dict.fromkeys(STATES, 0), active_s=1.0)]
        self.rows[Limit] = [
            Limit("lane:bulk", "rate", "rate", per_s=2.0, burst=2),
            Limit("sender:outbox", "cap:60", "cap", most=4, window_s=60.0),
        ]

    def _batch(self, batch_no: int, codes: bytes) -> None:
        runs = RUNS[batch_no]
        self.rows[Batch].append(
            Batch(
                batch_no,
                "spring",
                batch_no,
                len(codes),
                "UTC",
                "done",
                None,
                T0,
                codes,
                token=len(runs),
                plan_no=1,
                **{f"n_{kind}": count for kind, count in tally(codes).items()},
            )
        )
        for number, (attempt, verdict, covered) in enumerate(runs):
            self.rows[Attempt].append(
                Attempt(
                    batch_no,
                    "spring",
                    batch_no,
                    attempt,
                    ordinals.pack(covered),
                    number + 1,
                    "worker",
                    "outbox",
                    f"payload-{attempt}",
                    verdict,
                    second(batch_no + number / 2),
                    second(batch_no + number / 2 + 0.2),
                )
            )
        for ordinal, code in enumerate(codes):
            self.rows[Recipient].append(
                Recipient(
                    batch_no,
                    "spring",
                    batch_no,
                    ordinal,
                    person(batch_no, ordinal),
                    f"{person(batch_no, ordinal)}@one.example",
                    f"key-{person(batch_no, ordinal)}",
                    "en",
                    "UTC",
                    "{}",
                )
            )
            taken = code == Outcome.ACCEPTED
            self.rows[OutboundMessage].append(
                OutboundMessage(
                    message(batch_no, ordinal),
                    "spring",
                    batch_no,
                    ordinal,
                    code,
                    second(batch_no + 0.8),
                    runs[-1][0] if taken else None,
                )
            )
            if taken:
                self.letters.append(self.letter(batch_no, ordinal, runs[-1][0], batch_no + 0.6))

    def letter(self, batch_no: int, ordinal: int, attempt: str, at_s: float) -> Arrival:
        return Arrival(
            message(batch_no, ordinal), "spring", batch_no, attempt, second(at_s), f"spring/{attempt}.mbox:{ordinal}"
        )

    def change(self, kind: type, number: int = 0, **values: Any) -> None:
        self.rows[kind][number] = replace(self.rows[kind][number], **values)

    def outcome(self, batch_no: int, ordinal: int, code: int) -> None:
        """Another outcome, told the same way by every row of the store."""
        codes = bytearray(self.rows[Batch][batch_no].outcomes)
        codes[ordinal] = code
        self.change(
            Batch,
            batch_no,
            outcomes=bytes(codes),
            **{f"n_{kind}": count for kind, count in tally(bytes(codes)).items()},
        )
        number = next(
            i for i, row in enumerate(self.rows[OutboundMessage]) if row.message_id == message(batch_no, ordinal)
        )
        if code <= Outcome.IN_DOUBT:
            del self.rows[OutboundMessage][number]
        else:
            self.change(OutboundMessage, number, outcome=code)
        together = b"".join(batch.outcomes for batch in self.rows[Batch])
        self.change(Progress, **{f"n_{kind}": count for kind, count in tally(together).items()})

    def records(self) -> Records:
        return Records({kind: list(rows) for kind, rows in self.rows.items()})

    def judge(self, *, ended: bool = True, **seen: Any) -> Findings:
        return judge(self.records(), self.letters, now=NOW, ended=ended, **seen)


INTENT = {
    "attempt_id": "A0",
    "intent_at": second(0),
    "intent_ordinals": ordinals.pack([0, 1]),
    "payload_hash": "payload-A0",
}
STATES = [f"batches_{state}" for state in ("pending", "queued", "sending", "in_doubt", "held", "done")]


@pytest.fixture
def world() -> World:
    return World()


def told(findings: Findings) -> str:
    return "\n".join(str(violation) for violation in findings.violations)


def test_a_sound_run_has_no_findings(world: World) -> None:
    findings = world.judge()
    assert findings.violations == []
    assert (findings.recipients, findings.accepted_once) == (5, 4)
    assert findings.outcomes == {**dict.fromkeys(KINDS, 0), "accepted": 4, "refused": 1}


def test_lost_an_accepted_recipient_without_a_letter(world: World) -> None:
    world.letters.pop(0)
    findings = world.judge()
    assert findings.broken == {"I5"}
    assert findings.count("lost") == 1
    assert findings.accepted_once == 3


def test_duplicate_two_letters_of_one_message(world: World) -> None:
    world.change(Attempt, 1, verdict="unknown")
    world.letters.append(world.letter(1, 0, "B0", 1.3))
    findings = world.judge()
    assert findings.broken == {"I2", "I7"}
    assert findings.count("duplicates") == 1
    assert findings.accepted_once == 3


def test_a_duplicate_that_was_decided_before_is_allowed(world: World) -> None:
    world.change(Attempt, 1, verdict="unknown")
    world.letters.append(world.letter(1, 0, "B0", 1.3))
    world.rows[Limit] = []
    world.rows[Decision] = [
        Decision("d", "spring", "resend", second(1.4), "policy", 1, "B0", ordinals.pack([0, 1]), "quiet")
    ]
    assert world.judge().violations == []


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param({"at": second(30)}, id="decided afterwards"),
        pytest.param({"batch_no": 0}, id="decided for another batch"),
        pytest.param({"ordinals": ordinals.pack([1])}, id="decided for another ordinal"),
        pytest.param({"kind": "assume"}, id="decided not to send"),
        pytest.param({"campaign_id": "autumn"}, id="decided for another campaign"),
    ],
)
def test_a_decision_that_does_not_cover_a_duplicate_excuses_nothing(world: World, spoil: dict[str, Any]) -> None:
    world.letters.append(world.letter(1, 0, "B0", 1.3))
    decision = Decision("d", "spring", "resend", second(1.4), "policy", 1, "B0", ordinals.pack([0, 1]), "quiet")
    world.rows[Decision] = [replace(decision, **spoil)]
    assert world.judge().count("duplicates") == 1


def test_a_second_attempt_after_one_that_may_have_been_accepted(world: World) -> None:
    for verdict in ("accepted", "unknown"):
        world.change(Attempt, 1, verdict=verdict)
        findings = world.judge()
        assert findings.broken == {"I2"}
        assert "attempt B1 began though attempt B0 may have been accepted" in told(findings)
    world.change(Attempt, 1, verdict="mixed", outcomes=bytes((Outcome.OPEN, Outcome.ACCEPTED)))
    assert ["ordinal 1" in str(violation) for violation in world.judge().violations] == [True]


def test_a_second_intent_after_an_attempt_that_may_have_been_accepted(world: World) -> None:
    world.change(
        Batch,
        0,
        state="sending",
        open_state="sending",
        attempt_id="A1",
        intent_at=second(2),
        intent_ordinals=ordinals.pack([1]),
        payload_hash="payload-A1",
        claimed_at=second(280),
        lease_s=60.0,
    )
    assert world.judge(ended=False).broken == {"I2"}


def test_a_letter_of_an_attempt_that_only_a_decision_or_a_message_row_remembers_is_no_phantom(world: World) -> None:
    world.rows[Attempt].pop(0)
    assert world.judge().violations == []
    world.change(OutboundMessage, 0, attempt_id=None)
    assert world.judge().count("phantoms") == 1
    world.rows[Decision] = [Decision("d", "spring", "assume", second(1), "policy", 0, "A0", ordinals.pack([0]), "24 h")]
    assert world.judge().violations == []


def test_whoever_saw_intents_knows_of_attempts_that_left_no_row_and_when_they_began(world: World) -> None:
    attempt = world.rows[Attempt].pop(0)
    world.change(OutboundMessage, 0, attempt_id=None)
    assert world.judge().count("phantoms") == 1
    assert world.judge(intended={"A0": attempt.started_at}).violations == []
    world.change(Campaign, state="cancelling", changed_at=second(1.2))
    assert world.judge(ended=False, intended={"A0": T0, "B1": second(1.3)}).broken == {"I9"}
    assert world.judge(ended=False, intended={"A0": T0, "B1": second(1.1)}).violations == []


def test_phantom_a_letter_for_nobody(world: World) -> None:
    world.letters.append(replace(world.letters[0], message_id="nobody"))
    findings = world.judge()
    assert findings.count("phantoms") == 1
    assert "I3" in findings.broken


def test_phantom_a_letter_under_an_attempt_that_the_store_never_knew(world: World) -> None:
    world.letters[0] = replace(world.letters[0], attempt_id="X9")
    findings = world.judge()
    assert findings.count("phantoms") == 1
    assert findings.broken == {"I3", "I5"}


def test_phantom_a_letter_outside_the_ordinals_of_its_attempt(world: World) -> None:
    world.change(Attempt, 0, ordinals=ordinals.pack([1]))
    findings = world.judge()
    assert (findings.count("phantoms"), findings.broken) == (1, {"I3"})


def test_phantom_a_letter_that_arrived_before_its_intent(world: World) -> None:
    world.letters[0] = replace(world.letters[0], at=second(-0.5))
    findings = world.judge()
    assert (findings.count("phantoms"), findings.broken) == (1, {"I3"})


def test_the_coarse_clock_of_files_makes_no_phantom(world: World) -> None:
    world.letters[0] = replace(world.letters[0], at=second(-0.004))
    assert world.judge().violations == []


def test_phantom_a_letter_that_came_by_another_sender_than_the_one_asked(world: World) -> None:
    world.letters = [replace(one, provider=world.rows[Attempt][0].provider) for one in world.letters]
    assert world.judge().violations == []
    world.letters[0] = replace(world.letters[0], provider="backup")
    assert "came by backup" in told(world.judge())


def test_a_letter_whose_protocol_carries_no_batch_is_found_by_its_message(world: World) -> None:
    world.letters[0] = replace(world.letters[0], campaign_id="", batch_no=None)
    assert world.judge().violations == []


def test_phantom_a_letter_filed_under_another_batch(world: World) -> None:
    world.letters[0] = replace(world.letters[0], batch_no=1)
    assert world.judge().count("phantoms") == 1


@pytest.mark.parametrize(
    "code", [Outcome.RENDER_ERROR, Outcome.CANCELLED, Outcome.SUPPRESSED_BOUNCED, Outcome.PROVIDER_REFUSED]
)
def test_phantom_a_letter_to_somebody_who_is_on_record_as_not_sent(world: World, code: Outcome) -> None:
    world.outcome(0, 0, code)
    findings = world.judge()
    assert (findings.count("phantoms"), findings.broken) == (1, {"I3"})


def test_phantom_a_letter_to_somebody_who_is_still_open_with_nothing_in_flight(world: World) -> None:
    world.outcome(0, 0, Outcome.OPEN)
    world.change(Batch, 0, state="pending", open_state="pending")
    world.change(Campaign, state="running")
    assert world.judge(ended=False).count("phantoms") == 1


def test_a_letter_that_is_in_doubt_or_assumed_is_honest(world: World) -> None:
    world.outcome(0, 0, Outcome.ASSUMED)
    assert world.judge().violations == []


def test_a_letter_in_flight_is_no_phantom(world: World) -> None:
    for ordinal in (0, 1):
        world.outcome(0, ordinal, Outcome.OPEN)
    world.rows[Attempt].pop(0)
    world.change(Campaign, state="running")
    world.change(
        Batch,
        0,
        state="sending",
        open_state="sending",
        **INTENT,
        claimed_at=second(290),
        lease_s=60.0,
    )
    assert world.judge(ended=False).violations == []


def no_batch(world: World) -> None:
    world.rows[Batch].pop(0)


def short_outcomes(world: World) -> None:
    world.change(Batch, 0, outcomes=bytes((2, 2)), n_refused=0)


def unknown_code(world: World) -> None:
    world.change(Batch, 0, outcomes=bytes((2, 2, 250)), n_refused=0)


def open_in_a_batch_that_is_done(world: World) -> None:
    world.outcome(0, 2, Outcome.OPEN)


def no_message_row(world: World) -> None:
    world.rows[OutboundMessage].pop(0)


def other_outcome_in_the_message_row(world: World) -> None:
    world.change(OutboundMessage, 0, outcome=int(Outcome.ASSUMED))


def message_row_of_another_place(world: World) -> None:
    world.change(OutboundMessage, 0, ordinal=1)


def final_message_row_of_an_open_recipient(world: World) -> None:
    rows = list(world.rows[OutboundMessage])
    world.outcome(0, 2, Outcome.OPEN)
    world.rows[OutboundMessage] = rows
    world.change(Batch, 0, state="pending", open_state="pending")
    world.change(Campaign, state="running")


@pytest.mark.parametrize(
    "spoil",
    [
        no_batch,
        short_outcomes,
        unknown_code,
        open_in_a_batch_that_is_done,
        no_message_row,
        other_outcome_in_the_message_row,
        message_row_of_another_place,
        final_message_row_of_an_open_recipient,
    ],
)
def test_unaccounted_a_recipient_without_exactly_one_outcome(world: World, spoil: Callable[[World], None]) -> None:
    spoil(world)
    findings = world.judge(ended=False)
    assert findings.count("unaccounted") == (3 if spoil is no_batch else 1)
    assert "I1" in findings.broken


def test_a_packed_log_needs_no_row_for_each_message(world: World) -> None:
    world.rows[OutboundMessage] = []
    world.rows[Setting] = [Setting("lane", "bulk", '{"outbound_log": "packed"}', T0, "test")]
    assert world.judge().violations == []


def test_a_packed_log_must_still_agree_where_it_speaks(world: World) -> None:
    world.rows[Setting] = [Setting("lane", "bulk", '{"outbound_log": "packed"}', T0, "test")]
    world.change(OutboundMessage, 0, outcome=int(Outcome.PROVIDER_REFUSED))
    assert world.judge().count("unaccounted") == 1


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (Batch, {"n_accepted": 3, "n_refused": 0}, "do not tally"),
        (Batch, {"n_accepted": 3}, "do not tally"),
        (Batch, {"size": 4}, "size 4, 3 outcomes, 3 recipients"),
        (Batch, {"state": "pending"}, "state pending with open_state None"),
        (Batch, {"open_state": "done"}, "state done with open_state done"),
        (Campaign, {"recipients": 6}, "says 6 recipients in 2 batches, the snapshot has 5 in 2"),
        (Campaign, {"batches": 3}, "says 5 recipients in 3 batches"),
        (Progress, {"n_accepted": 5}, "not the sum over its batches"),
    ],
)
def test_counts_that_do_not_add_up(world: World, kind: type, values: dict[str, Any], said: str) -> None:
    world.change(kind, **values)
    findings = world.judge(ended=False)
    assert findings.broken == {"I1"}
    assert said in told(findings)


def test_completed_with_somebody_in_doubt(world: World) -> None:
    world.outcome(0, 0, Outcome.IN_DOUBT)
    world.change(Batch, 0, state="held", open_state="held", **INTENT)
    world.rows[Attempt].pop(0)
    findings = world.judge()
    assert "spring: completed, but 1 recipients have no final outcome" in told(findings)
    assert findings.outcomes["in_doubt"] == 1


def test_in_doubt_without_a_request_that_could_settle_it(world: World) -> None:
    world.outcome(0, 0, Outcome.IN_DOUBT)
    world.change(Batch, 0, state="pending", open_state="pending")
    world.change(Campaign, state="running")
    findings = world.judge(ended=False)
    assert findings.broken == {"I1"}
    assert "1 in doubt, but no request that could settle it" in told(findings)


def test_a_message_row_for_nobody(world: World) -> None:
    world.rows[OutboundMessage].append(OutboundMessage("nobody", "spring", 0, 7, 2, T0))
    assert world.judge().broken == {"I1"}


def test_tokens_that_fall(world: World) -> None:
    world.change(Attempt, 2, token=0)
    assert world.judge().broken == {"I4"}


def test_a_batch_whose_token_is_older_than_its_attempts(world: World) -> None:
    world.change(Batch, 1, token=1)
    assert world.judge().broken == {"I4"}


def test_a_message_row_that_names_an_attempt_which_the_provider_never_saw(world: World) -> None:
    world.change(OutboundMessage, 0, attempt_id="B1")
    assert world.judge().broken == {"I5"}


def test_one_attempt_with_two_payloads(world: World) -> None:
    world.change(
        Batch,
        0,
        state="sending",
        open_state="sending",
        **(INTENT | {"payload_hash": "other"}),
        claimed_at=second(290),
        lease_s=60.0,
    )
    assert world.judge(ended=False).broken == {"I6"}


def test_bytes_at_the_provider_that_are_not_those_of_the_intent(world: World) -> None:
    world.letters[0] = replace(world.letters[0], payload_hash="payload-A0")
    assert world.judge().violations == []
    world.letters[0] = replace(world.letters[0], payload_hash="other")
    assert world.judge().broken == {"I6"}


def arrivals(*pairs: tuple[float, int]) -> list[Arrivals]:
    return [Arrivals("spring", second(at_s), n) for at_s, n in pairs]


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        # rate 2/s, burst 2: a window T may hold 2 + 2 x (T + 2), so 6 at once.
        ([(0, 6)], 0),
        ([(0, 7)], 1),
        ([(0, 3), (0.5, 4)], 0),
        ([(0, 3), (0.45, 4)], 1),
        ([(0, 1), (100, 7)], 1),
        ([(0, 1), (100, 6)], 0),
        ([(0, 6), (0.5, 1), (1.0, 1), (1.2, 1)], 1),
        ([(3, 4), (0, 3), (3.2, 3)], 1),
    ],
)
def test_a_rate_over_every_window(world: World, pairs: list[tuple[float, int]], found: int) -> None:
    world.rows[Limit] = world.rows[Limit][:1]
    findings = world.judge(requests=arrivals(*pairs))
    assert findings.count("limit_violations") == found
    assert findings.broken == ({"I7"} if found else set())


@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ([(0, 4), (60, 4)], 0),
        ([(0, 4), (59.9, 1)], 1),
        ([(0, 2), (30, 2), (61, 2), (91, 2)], 0),
        ([(0, 2), (30, 2), (61, 3)], 1),
        ([(0, 5)], 1),
    ],
)
def test_a_cap_over_every_window_never_one_more(world: World, pairs: list[tuple[float, int]], found: int) -> None:
    world.rows[Limit] = world.rows[Limit][1:]
    findings = world.judge(requests=arrivals(*pairs))
    assert findings.count("limit_violations") == found
    assert findings.broken == ({"I7"} if found else set())


def test_limits_count_only_what_is_in_their_scope(world: World) -> None:
    world.rows[Limit] = [
        Limit("lane:critical", "rate", "rate", per_s=1.0, burst=1),
        Limit("sender:other", "cap:60", "cap", most=1, window_s=60.0),
    ]
    assert world.judge(requests=arrivals((0, 100))).violations == []


def test_a_limit_of_a_sender_counts_what_came_by_that_sender(world: World) -> None:
    """A lane's fallback sends for campaigns whose sender is another."""
    world.rows[Limit] = [Limit("sender:outbox", "cap:60", "cap", most=4, window_s=60.0)]
    by = [replace(one, sender="backup") for one in arrivals((0, 4), (1, 4))]
    assert world.judge(requests=[*by, *arrivals((2, 4))]).violations == []
    world.rows[Limit] = [Limit("sender:backup", "cap:60", "cap", most=4, window_s=60.0)]
    assert world.judge(requests=by).broken == {"I7"}


def test_a_limit_counts_a_letter_that_names_nothing_but_itself(world: World) -> None:
    """What comes by SMTP has no campaign."""
    world.rows[Limit] = [Limit("lane:bulk", "cap:60", "cap", most=1, window_s=60.0)]
    bare = [Arrivals("", second(n), 1, "outbox", message(0, n)) for n in range(2)]
    assert world.judge(requests=bare).broken == {"I7"}
    assert world.judge(requests=[replace(one, message_id="nobody") for one in bare]).violations == []


def test_limits_are_judged_by_the_letters_when_nothing_saw_more(world: World) -> None:
    world.rows[Limit] = [Limit("lane:bulk", "cap:60", "cap", most=3, window_s=60.0)]
    assert world.judge().count("limit_violations") == 1


def test_a_batch_that_is_sending_past_its_lease(world: World) -> None:
    world.outcome(0, 2, Outcome.OPEN)
    world.change(Campaign, state="running")
    lease = {"state": "sending", "open_state": "sending", "claimed_at": second(0), "lease_s": 60.0}
    world.change(Batch, 0, **lease, heartbeat_at=second(239))
    assert world.judge(ended=False).broken == {"I8"}
    world.change(Batch, 0, **lease, heartbeat_at=second(241))
    assert world.judge(ended=False).violations == []
    world.change(Batch, 0, state="sending", claimed_at=None, heartbeat_at=None)
    assert world.judge(ended=False).broken == {"I8"}


@pytest.mark.parametrize("state", ["paused", "cancelling"])
def test_a_request_that_began_after_a_pause_or_cancel(world: World, state: str) -> None:
    world.change(Campaign, state=state, changed_at=second(1.2))
    findings = world.judge(ended=False)
    assert findings.broken == {"I9"}
    assert "attempt B1: began after its campaign was stopped" in told(findings)


def test_a_request_that_began_between_the_order_to_cancel_and_the_end_of_the_campaign(world: World) -> None:
    world.change(Campaign, state="cancelled", changed_at=second(4))
    world.rows[Decision] = [Decision("cancel:spring", "spring", "cancel", second(1.2), "test")]
    assert world.judge().broken == {"I9"}
    world.change(Decision, at=second(1.6))
    assert world.judge().violations == []


def test_a_request_that_was_repeated_after_a_cancel_began_before_it(world: World) -> None:
    began = ids.attempt_id(int(second(1.5).timestamp() * 1000), bytes(10))
    world.change(Attempt, 2, attempt_id=began, started_at=second(60))
    world.change(Batch, 1, token=9)
    for number, row in enumerate(world.rows[OutboundMessage]):
        if row.attempt_id == "B1":
            world.change(OutboundMessage, number, attempt_id=began)
    world.letters = [
        replace(letter, attempt_id=began, at=second(61)) if letter.attempt_id == "B1" else letter
        for letter in world.letters
    ]
    world.rows[Limit] = []
    world.rows[Decision] = [Decision("cancel:spring", "spring", "cancel", second(2), "test")]
    assert world.judge().violations == []
    world.change(Decision, at=second(1))
    assert world.judge().broken == {"I9"}


def test_a_request_that_began_after_its_recipient_unsubscribed(world: World) -> None:
    gone = Suppression("key-r10", "*", 16, second(1.4), "test", "link")
    world.rows[Suppression] = [gone]
    findings = world.judge()
    assert findings.broken == {"I9"}
    assert "attempt B1 ordinal 0" in told(findings)
    world.rows[Suppression] = [replace(gone, created_at=second(1.6))]
    assert world.judge().violations == []


@pytest.mark.parametrize("state", ["pending", "queued", "in_doubt"])
def test_a_run_that_ended_with_work_left(world: World, state: str) -> None:
    world.outcome(0, 2, Outcome.OPEN)
    world.change(Campaign, state="running")
    world.change(Batch, 0, state=state, open_state=state)
    assert world.judge().broken == {"I11"}
    assert world.judge(ended=False).violations == []


def test_a_run_that_ended_without_completing_its_campaign(world: World) -> None:
    world.change(Campaign, state="running")
    assert world.judge().broken == {"I11"}


def test_a_snapshot_that_is_still_loading_promises_nothing(world: World) -> None:
    world.rows[Recipient].append(Recipient(0, "autumn", 0, 0, "x", "x@one.example", "k", "en", "UTC", "{}"))
    world.rows[Campaign].append(replace(world.rows[Campaign][0], campaign_id="autumn", state="loading", sealed_at=None))
    findings = world.judge()
    assert findings.violations == []
    assert findings.recipients == 5


@pytest.mark.parametrize(
    ("kind", "values", "broken"),
    [
        (Batch, {"token": 0}, "I4"),
        (Batch, {"plan_no": 0}, "I4"),
        (Batch, {"outcomes": bytes((2, 4, 64))}, "I10"),
        (Batch, {"outcomes": bytes((2, 0, 64))}, "I10"),
        (OutboundMessage, {"outcome": 4}, "I10"),
    ],
)
def test_what_may_not_change_between_two_moments(world: World, kind: type, values: dict[str, Any], broken: str) -> None:
    before = world.records()
    assert changes(before, before) == []
    world.change(kind, **values)
    assert {violation.invariant for violation in changes(before, world.records())} == {broken}


def test_rows_that_vanish_between_two_moments(world: World) -> None:
    before = world.records()
    world.rows[OutboundMessage].pop()
    world.rows[Batch].pop(0)
    assert [violation.what for violation in changes(before, world.records())] == [
        "the batch is gone",
        "its row said 2, and now is gone",
    ]


def test_open_and_doubtful_outcomes_may_change_and_a_retry_may_reopen(world: World) -> None:
    world.outcome(0, 0, Outcome.IN_DOUBT)
    world.outcome(0, 1, Outcome.OPEN)
    before = world.records()
    world.change(Batch, 0, outcomes=bytes((2, 2, 64)))
    assert changes(before, world.records()) == []
    world.change(Batch, 0, outcomes=bytes((2, 2, 0)), round=1)
    assert [violation.invariant for violation in changes(before, world.records())] == ["I10"]
    world.rows[Decision].append(retry(0, [2]))
    world.rows[OutboundMessage] = [row for row in world.rows[OutboundMessage] if row.outcome != 64]
    assert changes(before, world.records()) == []


def test_a_retry_excuses_nobody_who_was_accepted(world: World) -> None:
    before = world.records()
    world.change(Batch, 0, outcomes=bytes((0, 2, 64)), round=1)
    world.rows[Decision].append(retry(0, [0]))
    assert [violation.invariant for violation in changes(before, world.records())] == ["I10"]
    again = replace(world.letters[0], attempt_id="A9", at=second(30))
    world.letters.append(again)
    assert "I2" in world.judge().broken


def test_a_round_opened_before_is_no_leave_for_the_next(world: World) -> None:
    world.rows[Decision].append(retry(0, [2]))
    before = world.records()
    world.change(Batch, 0, outcomes=bytes((2, 2, 0)), round=1)
    assert [violation.invariant for violation in changes(before, world.records())] == ["I10"]


@pytest.mark.parametrize(
    "decisions",
    [
        [("provider.refused", [2], 1)],  # its batch is of no round
        [("exhausted", [2], 0), ("render.error", [2], 0)],
        [("exhausted", [], 0)],
        [("", [2], 0)],
        [("suppressed.bounced", [2], 0)],
    ],
)
def test_a_retry_that_is_not_as_it_should_be(world: World, decisions: list[tuple[str, list[int], int]]) -> None:
    for number, (reason, opened, round_no) in enumerate(decisions):
        world.rows[Decision].append(retry(0, opened, reason=reason, round_no=round_no, name=f"d{number}"))
    assert world.judge().broken == {"I10"}


def retry(
    batch_no: int, opened: list[int], *, reason: str = "exhausted", round_no: int = 1, name: str = "d"
) -> Decision:
    said = f'{{"round": {round_no}, "reason": "{reason}"}}'
    return Decision(name, "spring", "retry", second(10), "ann", batch_no, None, ordinals.pack(opened), said)


def test_findings_name_no_address(world: World) -> None:
    world.letters = [replace(letter, attempt_id="X9") for letter in world.letters[1:]]
    world.rows[OutboundMessage] = []
    assert "@" not in told(world.judge())


def test_a_sqlite_store_is_read_back_row_by_row(world: World, tmp_path: Path) -> None:
    world.rows[Batch][0] = replace(world.rows[Batch][0], heartbeat_at=second(0.123457))
    with sqlite3.connect(tmp_path / "store.db") as connection:
        for kind, table in TABLES.items():
            connection.execute(f"CREATE TABLE {table.name} ({', '.join(column.name for column in table.columns)})")
            marks = ", ".join("?" * len(table.columns))
            for row in world.rows[kind]:
                connection.execute(
                    f"INSERT INTO {table.name} VALUES ({marks})", [stored(value) for value in astuple(row)]
                )
    connection.close()
    records = read_sqlite(tmp_path / "store.db")
    assert records.rows == world.records().rows
    assert judge(records, world.letters, now=NOW, ended=True).violations == []


def stored(value: Any) -> Any:
    return (value - EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value


def test_an_outbox_is_read_letter_by_letter(tmp_path: Path) -> None:
    def letter(name: str, batch: str = "3") -> str:
        return (
            f"From sendonce@localhost Thu Jan 15 09:00:00 2026\nMessage-ID: <{name}@shop.example>\n"
            f"X-Sendonce-Campaign: spring\nX-Sendonce-Batch: {batch}\nX-Sendonce-Attempt: A0\n"
            f"Subject: hello\n\n>From here on\nMessage-ID: <not-a-header@shop.example>\n\n"
        )

    folder = tmp_path / "spring"
    folder.mkdir()
    (folder / "one.mbox").write_text(letter("m1") + letter("m2", batch="x"))
    (folder / "one.mbox.tmp").write_text(letter("m3"))
    found = read_outbox(tmp_path)
    assert [(arrival.message_id, arrival.batch_no, arrival.place) for arrival in found] == [
        ("m1", 3, "spring/one.mbox:0"),
        ("m2", -1, "spring/one.mbox:1"),
    ]
    assert {(arrival.campaign_id, arrival.attempt_id) for arrival in found} == {("spring", "A0")}
    assert {arrival.payload_hash for arrival in found} == {
        hashlib.sha256((folder / "one.mbox").read_bytes()).hexdigest()
    }
    assert found[0].at.timestamp() == pytest.approx((folder / "one.mbox").stat().st_mtime)


# -- doubts beside their batches ---------------------------------------------------------------------------------


def beside(batch_no: int, intent: list[int], attempt_id: str = "01ASIDE", began: datetime = T0) -> AsideDoubt:
    shard = ids.shard_of("spring", batch_no)
    return AsideDoubt(
        shard, "spring", batch_no, attempt_id, "held", ordinals.pack(intent), "h" * 64, "outbox", began, began, began
    )


def test_a_doubt_beside_a_batch_that_goes_on_is_one_that_can_be_settled(world: World) -> None:
    world.outcome(0, 0, Outcome.IN_DOUBT)
    world.change(Batch, 0, state="pending", open_state="pending")
    world.change(Campaign, state="running")
    world.rows[AsideDoubt].append(beside(0, [0]))
    assert "in doubt" not in told(world.judge(ended=False))


def test_a_doubt_beside_a_batch_in_which_nobody_is_in_doubt(world: World) -> None:
    world.rows[AsideDoubt].append(beside(0, [0]))
    assert "stands beside it, but nobody is in doubt by it" in told(world.judge())


def test_another_attempt_for_somebody_whose_doubt_is_set_aside(world: World) -> None:
    """I2: that may have been accepted; only a decision allows another."""
    world.outcome(0, 0, Outcome.IN_DOUBT)
    world.change(Batch, 0, state="pending", open_state="pending")
    world.change(Campaign, state="running")
    world.rows[AsideDoubt].append(beside(0, [0], began=T0 - timedelta(hours=1)))
    findings = world.judge(ended=False)
    assert "I2" in findings.broken
    assert "began though attempt 01ASIDE may have been accepted" in told(findings)
