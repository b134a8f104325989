"""The providers of the kill test: real senders talk to them, they outlive clients, and they tell what they took."""

import importlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sendonce.config.adapters import SETTINGS
from sendonce.senders.base import Reply, Request, Sender, Verdict
from tests.chaos.failover import Failover
from tests.chaos.place import SqlitePlace
from tests.chaos.provider import OutboxProvider, Providers, ServedProvider
from tests.chaos.provider_faults import SILENT, SMTP_FAULTS, THROTTLES_MAX, UNAVAILABLE, UP, Troubles
from tests.chaos.test_parts import letter, put
from tests.evidence import Arrival
from tests.providers.http import wait_until
from tests.senders.conformance import new_attempt, packed, request_of

ROOT = Path(__file__).parents[2]
SERVED = ("sendgrid", "ses", "webhook", "resend", "smtp")
KEYED = ("webhook", "resend")


@contextmanager
def served(kind: str, folder: Path, **more: bool) -> Iterator[ServedProvider]:
    provider = ServedProvider(kind, folder / f"{kind}.jsonl", random.Random(1), **{"calm": True, **more})
    provider.start()
    try:
        yield provider
    finally:
        provider.stop()
        provider.stop()


def sender_of(provider: ServedProvider) -> Sender:
    """The product's own sender, set up as a run sets it up."""
    pytest.importorskip({"ses": "botocore", "smtp": "aiosmtplib"}.get(provider.name, "orjson"))
    settings = SETTINGS[provider.name].model_validate({"name": provider.name, **provider.setting})
    secrets = {
        setting: provider.environment[reference.removeprefix("env:")]
        for setting, reference in settings.secret_references().items()
    }
    sender: Sender = importlib.import_module(f"sendonce.senders.{provider.name}").make(settings, secrets)
    return sender


def send(sender: Sender, request: Request, timeout_s: float = 10.0) -> Reply:
    return sender.send(sender.prepare(request), timeout_s)


@pytest.mark.parametrize("kind", SERVED)
def test_a_provider_tells_each_letter_that_a_sender_handed_over(kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path) as provider:
        sender, request = sender_of(provider), request_of([packed(0), packed(1)])
        reply = send(sender, request)
        sender.close()
        letters, arrivals = provider.arrivals()
    assert reply.verdict is Verdict.ACCEPTED
    assert {one.message_id for one in letters} == {one.message_id for one in request.chosen}
    assert {one.attempt_id for one in letters} == {request.attempt_id}
    assert {one.provider for one in letters} == {kind}
    assert {one.batch_no for one in letters} == ({None} if kind == "smtp" else {42})
    assert sum(one.n for one in arrivals) == provider.taken() == 2
    assert provider.has(request.attempt_id)
    assert not provider.has(new_attempt())


@pytest.mark.parametrize("kind", SERVED)
def test_a_provider_counts_a_repeat_as_it_would_itself(kind: str, tmp_path: Path) -> None:
    """A key that it knows is one acceptance; where there are no keys, the second letter is a second letter."""
    with served(kind, tmp_path) as provider:
        sender, request = sender_of(provider), request_of([packed(0)])
        assert [send(sender, request).verdict for _ in range(2)] == [Verdict.ACCEPTED] * 2
        sender.close()
        letters, _ = provider.arrivals()
        repeats = provider.repeats
    assert len(letters) == (1 if kind in KEYED else 2)
    assert repeats == (1 if kind in KEYED else 0)


_DIES = """
import sys
from tests.chaos.test_providers import packed, request_of, send
from sendonce.config import SmtpSettings
from sendonce.senders import smtp

settings = SmtpSettings(name="smtp", adapter="smtp", host="127.0.0.1", port=int(sys.argv[1]), tls="never")
send(smtp.make(settings, {"user": sys.argv[2], "password": sys.argv[3]}), request_of([packed(n) for n in range(4)]))
"""


@pytest.mark.parametrize(("failpoint", "taken"), [("M1:kill9:3", 2), ("S4:kill9:3", 3), ("S5:kill9:3", 3)])
def test_a_mail_server_has_the_letter_whose_dot_left_before_its_sender_was_killed(
    failpoint: str, taken: int, tmp_path: Path
) -> None:
    """M1: after some recipients, before the letter. S4: between the final dot and the reply. S5: after the reply."""
    pytest.importorskip("aiosmtplib", reason="aiosmtplib is not installed")
    with served("smtp", tmp_path) as provider:
        login = [provider.environment["CHAOS_SMTP_USER"], provider.environment["CHAOS_SMTP_PASSWORD"]]
        died = subprocess.run(
            [sys.executable, "-c", _DIES, str(provider.setting["port"]), *login],
            env={**os.environ, "SENDONCE_FAILPOINT": failpoint},
            cwd=ROOT,
            timeout=60,
            check=False,
        )
        assert died.returncode == -signal.SIGKILL
        wait_until(lambda: provider.taken() == taken, within_s=60)
    # Its process has ended: whatever it had read by then is in its log.
    assert [one.message_id for one in provider.arrivals()[0]] == [packed(n).message_id for n in range(taken)]


@pytest.mark.parametrize("kind", SERVED)
def test_a_provider_goes_away_and_comes_back_as_it_is_told(kind: str, tmp_path: Path) -> None:
    with served(kind, tmp_path, may_vanish=True) as provider:
        sender = sender_of(provider)
        provider.vanish()
        assert send(sender, request_of([packed(0)])).verdict is Verdict.NOT_SENT
        provider.appear()
        provider.order(UNAVAILABLE)
        assert send(sender, request_of([packed(1)])).verdict in (Verdict.NOT_SENT, Verdict.UNKNOWN)
        provider.order(SILENT)
        assert send(sender, request_of([packed(2)]), 0.6).verdict in (Verdict.NOT_SENT, Verdict.UNKNOWN)
        provider.order(UP)
        assert send(sender, request_of([packed(3)])).verdict is Verdict.ACCEPTED
        sender.close()
        taken = {one.message_id for one in provider.arrivals()[0]}
    assert packed(3).message_id in taken
    assert not {packed(0).message_id, packed(1).message_id} & taken


def test_faults_are_a_seed_s_and_another_seed_has_others() -> None:
    def drawn(seed: int) -> list[object]:
        troubles = Troubles(seed)
        return [*(troubles.popleft() for _ in range(300)), *(troubles.at("dot", "x") for _ in range(2000))]

    assert drawn(7) == drawn(7)
    assert drawn(7) != drawn(8)
    found = [one for one in drawn(7) if one is not None]
    assert len({repr(one) for one in found}) >= 15


def test_every_fault_of_a_mail_server_comes_up_and_throttles_stay_few() -> None:
    troubles = Troubles(1)
    for phase, faults in SMTP_FAULTS.items():
        throttling = [fault for fault in faults if fault.reply[:3] in ("421", "452")]
        drawn = [fault for _ in range(60_000) if (fault := troubles.at(phase, "x")) is not None]
        assert set(drawn) >= set(faults) - set(throttling), phase
    again = [fault for _ in range(60_000) if (fault := troubles.at("mail", "x")) is not None]
    assert not [fault for fault in again if fault.reply[:3] in ("421", "452")]
    fates = [fate for _ in range(20_000) if (fate := Troubles.popleft(troubles)) is not None]
    assert THROTTLES_MAX >= 1
    assert not [fate for fate in fates if fate.status == 429]


def test_a_provider_that_is_taken_at_its_word_says_503_of_nothing_that_it_took() -> None:
    for honest in (True, False):
        troubles = Troubles(1, honest_503=honest)
        fates = [fate for _ in range(20_000) if (fate := troubles.popleft()) is not None and fate.status == 503]
        assert any(fate.accepted for fate in fates) is not honest
        assert fates


def test_a_calm_provider_does_nothing_but_what_it_is_told() -> None:
    troubles = Troubles(1, at_random=False)
    assert [troubles.popleft() for _ in range(500)] == [None] * 500
    assert [troubles.at(phase, "x") for phase in SMTP_FAULTS for _ in range(500)] == [None] * 500 * len(SMTP_FAULTS)
    assert not any(troubles.refuses(f"u{n}@chaos.example") for n in range(1000))
    troubles.order = UNAVAILABLE
    assert troubles.popleft() is not None
    assert troubles.at("banner", "") is not None


def test_one_in_sixty_recipients_is_refused_and_always_the_same() -> None:
    people = [f"u{n}@chaos.example" for n in range(6000)]
    refused = [one for one in people if Troubles(3).refuses(one)]
    assert 50 < len(refused) < 160
    assert refused == [one for one in people if Troubles(3).refuses(one)]


def test_both_providers_of_a_lane_are_looked_up(tmp_path: Path) -> None:
    outbox = OutboxProvider(tmp_path / "outbox", tmp_path / "seen")
    with served("sendgrid", tmp_path) as own:
        both = Providers(own, outbox)
        sender, request = sender_of(own), request_of([packed(0)])
        send(sender, request)
        sender.close()
        assert both.has(request.attempt_id)
        put(tmp_path / "outbox" / "spring" / "batch-0.mbox", letter("m1", "A0"))
        outbox._watch.look()
        letters, arrivals = both.arrivals()
        assert [(one.message_id, one.provider) for one in letters] == [
            (request.chosen[0].message_id, "sendgrid"),
            ("m1", "outbox"),
        ]
        assert [one.sender for one in arrivals] == ["sendgrid", "outbox"]
    assert both.real
    assert not both.private
    assert set(both.files) == {*own.files, *outbox.files}


def letters(*providers: str) -> list[Arrival]:
    start = datetime(2026, 1, 15, 9, 0, tzinfo=UTC)
    return [
        Arrival(f"m{n}", "spring", 0, "A0", start + timedelta(seconds=n), "x", provider=name)
        for n, name in enumerate(providers)
    ]


@pytest.mark.parametrize(
    ("by", "turns", "said"),
    [
        (("sendgrid", "sendgrid"), 0, ["no letter went by the fallback", "none ended"]),
        (("sendgrid", "outbox"), 0, ["the way back is not proven", "none ended"]),
        (("sendgrid", "outbox", "sendgrid"), 0, ["none ended"]),
        (("sendgrid", "outbox", "sendgrid"), 1, []),
    ],
)
def test_a_run_without_the_way_over_the_fallback_and_back_proves_nothing(
    by: tuple[str, ...], turns: int, said: list[str], tmp_path: Path
) -> None:
    own = ServedProvider("sendgrid", tmp_path / "log", random.Random(1), calm=True)
    other = OutboxProvider(tmp_path / "outbox", tmp_path / "seen")
    failover = Failover(own, other, SqlitePlace(tmp_path / "store.db"), random.Random(1))
    failover.turns = turns
    found = failover.problems(letters(*by))
    assert len(found) == len(said)
    assert all(words in problem for words, problem in zip(said, found, strict=True))


def test_a_provider_dies_with_the_run_that_started_it(tmp_path: Path) -> None:
    provider = ServedProvider("smtp", tmp_path / "log", random.Random(1), calm=True)
    provider.start()
    process = provider._process
    assert process is not None
    assert process.stdin is not None
    began_s = time.monotonic()
    process.stdin.close()
    assert process.wait(30) == 0
    assert time.monotonic() - began_s < 30
