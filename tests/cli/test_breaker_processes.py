"""The breaker over real processes: one letter probes, whoever probes may be killed, and then it closes by itself."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from schemas.tables import Switch
from sendonce.delivery import health, retry
from sendonce.stores.base import Store
from sendonce.stores.opening import shared_store
from tests.cli.conftest import Call
from tests.providers.http import Fate
from tests.providers.sendgrid import KEY, FakeSendGrid

PEOPLE = 60
ANSWERS_AFTER_S = 0.4
TIMES = "times: {request_timeout_s: 2, permit_ttl_s: 1, margin_s: 0.5, lease_s: 4, window_s: 1, visibility_s: 2.5}"
MAIL = "adapter: sendgrid, api_key: env:THE_KEY, http_503: not_sent"


def switch(store: Store) -> Switch | None:
    return store.read(lambda reader: reader.get(Switch, "sender:mail"))


def start(folder: Path, failpoint: str = "") -> subprocess.Popen[bytes]:
    environment = {**os.environ, "THE_KEY": KEY, "SENDONCE_FAILPOINT": failpoint}
    command = [sys.executable, "-m", "sendonce.cli", "run"]
    silent = subprocess.DEVNULL
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=silent, stderr=silent)


@pytest.mark.filterwarnings("ignore")
def test_one_process_probes_dies_and_another_probes_after_its_lease(
    sendonce: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", KEY)
    log = folder / "provider.jsonl"
    with FakeSendGrid(log, rule=lambda _: Fate(503), checks="limits", delay_s=ANSWERS_AFTER_S) as fake:
        (folder / "sendonce.yaml").write_text(
            "from: Shop <news@shop.example>\nunsubscribe: {base_url: https://shop.example/u}\n"
            f"senders: {{mail: {{{MAIL}, base_url: '{fake.url}'}}}}\n"
            f"lanes: {{bulk: {{batch_size: 5, {TIMES}}}}}\n"
        )
        rows = [f"r{number},u{number}@one.example,Ann" for number in range(PEOPLE)]
        (folder / "people.csv").write_text("\n".join(["recipient_id,email,name", *rows]))
        for command in (
            ("init", "--environment", "production"),
            ("load", "spring", "people.csv", "-t", "newsletter"),
            ("submit", "spring", "--yes"),
        ):
            answer = sendonce(*command)
            assert answer.code == 0, answer.err
        store = shared_store("sqlite:///.sendonce/sendonce.db")
        monkeypatch.setattr(retry, "LONGEST_S", 0.6)
        while (found := switch(store)) is None or found.kind != health.OPEN:
            sendonce("run", "--once")

        fake.rule = None
        refused = len(fake.requests())
        dies = start(folder, "S3:kill9")
        assert dies.wait(60) == -signal.SIGKILL, "it took the probe and was killed before it wrote a byte"
        found = switch(store)
        assert found is not None
        assert found.kind == health.PROBING
        assert len(fake.requests()) == refused

        others = [start(folder) for _ in range(2)]
        assert [other.wait(90) for other in others] == [1, 1], "the dead probe's letter is in doubt, all else is done"
        after = fake.requests()[refused:]
    assert after[0]["recipients"] == health.PROBE_RECIPIENTS
    assert after[0]["at"] >= found.since.timestamp()
    assert all(line["at"] >= after[0]["at"] + ANSWERS_AFTER_S for line in after[1:]), "the others waited for its answer"
    assert found.until_at is not None
    assert after[0]["at"] >= found.until_at.timestamp()
    assert switch(store) is None
    status = sendonce("status", "spring", "--json").json
    assert (status["sent_count"], status["in_doubt"], status["failed_count"]) == (PEOPLE - 1, 1, 0)
    assert status["sent_count"] + status["in_doubt"] + status["open"] == PEOPLE
