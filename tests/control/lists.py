"""Loading a list in a test, and looking at what came of it."""

import json
from pathlib import Path
from typing import Any

from schemas.ids import shard_of
from schemas.tables import Batch, Campaign, Recipient
from sendonce.control.load import LoadOptions, LoadReport, load
from sendonce.rendering.catalogue import TemplateSource, source_of
from sendonce.stores.base import ANY_SHARD, Store

CASES = Path(__file__).parents[1] / "cases"
HEADER = b"recipient_id,email,locale,timezone,template_variables\n"
TEMPLATE = source_of(
    "plain",
    {
        "template.yaml": 'priority: bulk\nfrom: "Shop <news@shop.example>"\nreply_to: help@shop.example\n',
        "subject.j2": "Hello",
        "body.txt.j2": "Hello {{ unsubscribe_url }}",
    },
)


class Loaded:
    """What a load left: its report, its recipients by id, its rejects."""

    def __init__(self, store: Store, report: LoadReport) -> None:
        self.report = report
        self.people = {row.recipient_id: row for row in recipients(store, report.campaign_id)}
        self.rejects = rejects(report)

    @property
    def emails(self) -> dict[str, str]:
        return {number: row.email for number, row in self.people.items()}

    @property
    def variables(self) -> dict[str, Any]:
        return {number: json.loads(row.template_variables) for number, row in self.people.items()}

    @property
    def lines(self) -> dict[int, str]:
        return {reject["line"]: reject["reason"] for reject in self.rejects}


class Loads:
    """Loads into one store; campaigns are `c1`, `c2`, … unless named."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self._count = 0

    def __call__(
        self,
        content: bytes | Path,
        *,
        name: str = "list.csv",
        campaign_id: str = "",
        template: TemplateSource = TEMPLATE,
        **options: Any,
    ) -> Loaded:
        path = content if isinstance(content, Path) else self.folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        self._count += 1
        options.setdefault("rejects_folder", self.folder / "rejects")
        report = load(
            self.store,
            campaign_id=campaign_id or f"c{self._count}",
            path=path,
            template=template,
            options=LoadOptions(**options),
            by="test",
        )
        return Loaded(self.store, report)

    def case(self, place: str, **options: Any) -> Loaded:
        return self(CASES / place, **options)


def campaign(store: Store, campaign_id: str) -> Campaign | None:
    return store.read(lambda reader: reader.get(Campaign, campaign_id))


def recipients(store: Store, campaign_id: str) -> list[Recipient]:
    """In the order of the snapshot."""
    found = store.read(lambda reader: reader.scan(Recipient, ANY_SHARD, campaign_id))
    return sorted(found, key=lambda row: (row.batch_no, row.ordinal))


def batches(store: Store, campaign_id: str) -> list[Batch]:
    found = store.read(lambda reader: reader.scan(Batch, ANY_SHARD, campaign_id))
    assert all(row.shard == shard_of(campaign_id, row.batch_no) for row in found)
    return sorted(found, key=lambda row: row.batch_no)


def rejects(report: LoadReport) -> list[dict[str, Any]]:
    if report.rejects_file is None:
        return []
    return [json.loads(line) for line in Path(report.rejects_file).read_text(encoding="utf-8").splitlines()]
