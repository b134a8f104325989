"""The case times-workers: four processes keep one limit together, and use it."""

import subprocess
import sys
from pathlib import Path

from tests.pipelines.shop import Shop

RUN = "import sys; from pipelines.local import quiet_beam, run_bounded; quiet_beam(); run_bounded(sys.argv[1])"
ROOT = Path(__file__).parents[2]


def test_four_processes_keep_one_rate_together(shop: Shop) -> None:
    per_s, people = 20, 100
    shop.configure(limits=[{"rate": f"{per_s}/s", "burst": 1}])
    shop.campaign("spring", [{"id": f"p{number}"} for number in range(people)], batch_size=5)
    runs = [subprocess.Popen([sys.executable, "-c", RUN, shop.url], cwd=ROOT) for _ in range(4)]
    assert [run.wait(110) for run in runs] == [0] * 4

    arrived = sorted(file.stat().st_mtime for file in (shop.folder / "outbox").rglob("*.mbox"))
    assert len(arrived) == people
    # One may arrive late by what its permit is good for (2 s); four limits of their own would end in a quarter of this.
    assert arrived[-1] - arrived[0] >= (people - 1) / per_s - 2
    for start in arrived:
        assert sum(start <= at < start + 1 for at in arrived) <= 1 + per_s * (1 + 2)
