"""The ground on which a run takes place: a folder with settings, a template, recipients, and campaigns made of them.

Everything goes through the command line, as a user would do it.
"""

import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.place import Place
from tests.chaos.provider import Providers

ROOT = Path(__file__).parents[2]
ZONES = ("Europe/Berlin", "America/New_York", "Asia/Ho_Chi_Minh")
LOCALES = ("en", "de", "vi")

# A share of 0 cannot be divided by: that recipient is refused when its letter is rendered, and its neighbours are not.
_TEMPLATE = {
    "template.yaml": (
        "priority: bulk\nlocales: [en]\ndefault_locale: en\n"
        "variables:\n  first_name: {type: text, example: Ann}\n  share: {type: text, example: '4'}\n"
    ),
    "subject.j2": "{{ first_name }}, your share\n",
    "body.txt.j2": "Hello {{ first_name }},\n\nyour share is {{ 60 // (share|int) }}.\n\n{{ unsubscribe_url }}\n",
    "body.html.j2": (
        "<p>Hello {{ first_name }},</p><p>your share is {{ 60 // (share|int) }}.</p>"
        '<p><a href="{{ unsubscribe_url }}">Unsubscribe</a></p>\n'
    ),
}


@dataclass(frozen=True)
class Load:
    """How much work there is, and how fast it may go: slow enough that the kills have something to hit."""

    recipients: int
    campaigns: int
    batch_size: int
    rate: int
    burst: int
    cap: int
    cap_window_s: int
    lease_s: int = 6
    visibility_s: int = 6


def load_for(recipients: int, kills: int, *, slow: bool = False, fails_over: bool = False) -> Load:
    """About three kills a campaign and four batches a kill; limits that make the work last 1.5 s for each kill.

    The cap is a little below what the rate would pass in the same time, so that both limits bind. slow: for a store
    that takes a tenth of a second for each step: a burst of its whole second, so that a request takes a whole batch;
    times in which a busy machine finds its way from a plan to a request.
    fails_over: a provider must have time to go away and to come back: 3 s for each kill and 16 s at least, and another
    campaign for the way back.
    """
    lasts_s = max(16.0, 3.0 * kills) if fails_over else 1.5 * max(1, kills)
    rate = max(5 if fails_over else 20, int(recipients / lasts_s))
    return Load(
        recipients=recipients,
        campaigns=max(min(2, recipients) if fails_over else 1, min(12, kills // 3, recipients)),
        batch_size=max(1, min(200, recipients // max(1, 4 * kills))),
        rate=rate,
        burst=rate if slow or fails_over else rate // 4,
        cap=rate * 4,
        cap_window_s=5,
        lease_s=9 if slow else 6,
        visibility_s=15 if slow else 6,
    )


class CommandFailed(Exception):
    """A command of the setup did not do its work; the message holds what it said."""


class Ground:
    def __init__(
        self,
        folder: Path,
        load: Load,
        chance: random.Random,
        place: Place,
        providers: Providers,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.place = place
        self.providers = providers
        self.recipients = folder / "recipients"
        self.mark = f"canary{chance.getrandbits(64):016x}"
        self.campaigns = [f"chaos-{number:02d}" for number in range(load.campaigns)]
        self._load = load
        self._chance = chance
        temporary = folder / "tmp"
        for path in (folder / "logs", temporary, self.recipients):
            path.mkdir(parents=True)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SENDONCE_")},
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(temporary),
            **place.environment,
            **providers.environment,
            **(environment or {}),
        }

    def make(self) -> None:
        """Settings, store, template, recipients; every campaign loaded, none submitted. The providers have started."""
        (self.folder / "sendonce.yaml").write_text(json.dumps(self._settings()))
        template = self.folder / "templates" / "share"
        template.mkdir(parents=True)
        for name, text in _TEMPLATE.items():
            (template / name).write_text(text)
        real = self.providers.real and not self.providers.private
        self.sendonce("init", "--environment", "production" if real else "test")
        for number, campaign in enumerate(self.campaigns):
            rows = list(self._people(number))
            with open(self.recipients / f"{campaign}.csv", "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(("recipient_id", "email", "locale", "timezone", "first_name", "share"))
                writer.writerows(rows)
            self.sendonce("load", campaign, f"recipients/{campaign}.csv", "--template", "share")

    def submit(self, campaign: str) -> None:
        self.sendonce("submit", campaign, "--yes")

    def _settings(self) -> dict[str, Any]:
        """JSON is YAML. A lane that leaves its doubts to a person, under limits of its own and of its senders."""
        load, each = self._load, self.providers.each
        waits = {"lease_s": load.lease_s, "visibility_s": load.visibility_s}
        # The answer to a letter by mail may come after its lease, which is renewed meanwhile.
        times = {**waits, "request_timeout_s": 2, "margin_s": 1, "permit_ttl_s": 2, "answer_s": 8}
        rate = {"rate": f"{load.rate}/s", "burst": load.burst}
        names = dict(zip(("sender", "fallback"), (one.name for one in each), strict=False))
        lane = {**names, "batch_size": load.batch_size, "in_doubt": "hold", "limits": [rate], "times": times}
        cap = {"cap": f"{load.cap}/{load.cap_window_s}s"}
        return {
            "store": self.place.url,
            "from": "Chaos <news@shop.example>",
            "templates": ["templates"],
            "unsubscribe": {"base_url": "https://shop.example/u"},
            "lanes": {"bulk": lane},
            "senders": {one.name: {**one.setting, "limits": [cap]} for one in each},
            **({"recipients_allowed": ["@chaos.example"]} if self.providers.private else {}),
        }

    def sendonce(self, *arguments: str) -> str:
        """Run one command to its end; what it said goes to a log too. CommandFailed if it did not do its work."""
        done = subprocess.run(
            [sys.executable, "-m", "sendonce.cli", *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        with open(self.folder / "logs" / "commands.log", "a") as log:
            log.write(f"$ sendonce {' '.join(arguments)}\n{done.stdout}{done.stderr}")
        if done.returncode:
            raise CommandFailed(f"sendonce {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def _people(self, campaign: int) -> Iterable[tuple[str, ...]]:
        """The rows of one campaign's file: its part of all recipients, and two rows that must not be in the snapshot.

        One in a hundred, and at least one, cannot be rendered. Canaries are a recipient, one that cannot be rendered,
        and a row with a bad address.
        """
        total, parts = self._load.recipients, self._load.campaigns
        size = total * (campaign + 1) // parts - total * campaign // parts
        refused = set(self._chance.sample(range(size), max(1, size // 100)))
        canaries = {min(refused), self._chance.randrange(size)}
        for number in range(size):
            name = f"{self.mark}-{number}" if number in canaries else f"r{campaign:02d}-{number:06d}"
            yield (
                f"c{campaign:02d}-{number:06d}",
                f"{name}@chaos.example",
                self._chance.choice(LOCALES),
                self._chance.choice(ZONES),
                self.mark if number in canaries else f"Ann {number}",
                "0" if number in refused else str(self._chance.randint(1, 12)),
            )
        yield (f"c{campaign:02d}-bad", f"{self.mark} at chaos.example", "en", "UTC", self.mark, "1")
        yield (f"c{campaign:02d}-again", f"{name}@chaos.example", "en", "UTC", "Ann", "1")
