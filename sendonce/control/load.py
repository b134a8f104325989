"""From a recipients file to a sealed snapshot: read, judge, drop duplicates, put in order, cut into batches, seal.

    file ─ rows ─ candidates ─ staged once per id and mailbox ─ ordered ─ batches ─ sealed
              └─ rejects ──────────┘

Nothing of the store but the campaign's claim is written until the whole file is read. What is sealed never changes; a
load that dies leaves a claim that the next load of that campaign clears away.
"""

import gc
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Optional

import orjson

from schemas.ids import address_key, campaign_id_problem
from schemas.tables import COMMIT_TIME, Campaign
from sendonce.control.early_cancels import called_off
from sendonce.control.expiry import check_end
from sendonce.control.load_faults import LoadFailed, LoadFault
from sendonce.control.load_plan import KEPT, LoadOptions, LoadReport, already_loaded, campaign_row, identity_of
from sendonce.control.raw_rows import FileOptions
from sendonce.control.recipients_file import RecipientsFile
from sendonce.control.rejects import Rejects
from sendonce.control.row_checks import RowChecks
from sendonce.control.snapshots import BEAT_S, Sealed, Snapshot
from sendonce.control.staging import Staging
from sendonce.control.template_fit import TemplateFit
from sendonce.control.unsubscribe import newest_key
from sendonce.rendering.catalogue import TemplateSource, to_row
from sendonce.rendering.compiled import compile_template
from sendonce.stores.base import Store, StoreError
from sendonce.stores.opening import store_key

__all__ = ["LoadFailed", "LoadFault", "LoadOptions", "LoadProgress", "LoadReport", "load"]


@dataclass(frozen=True)
class LoadProgress:
    """Where a load is. `stage`: reading (bytes of the file), then writing (recipients of the snapshot)."""

    stage: str
    done: int
    total: int
    rows_read: int
    rows_rejected: int
    rows_duplicate: int


def load(
    store: Store,
    *,
    campaign_id: str,
    path: Path | str,
    template: TemplateSource,
    options: LoadOptions,
    by: str,
    progress: Optional[Callable[[LoadProgress], None]] = None,
) -> LoadReport:
    """Load a file into a new campaign and seal it: state `ready`, template pinned. The same again changes nothing.

    LoadFault, BadEnd: the file, an option or the campaign forbids it. LoadFailed: disk, folder, or another load took
    over. TemplateFault for a template from which no letter can be made; StoreError from the store. After any of them,
    and after a kill, no snapshot is there, and the same call starts over.
    """
    started = time.monotonic()
    problem = campaign_id_problem(campaign_id)
    if problem:
        raise LoadFault(f"{campaign_id!r} is no campaign id", "", problem)
    plan = campaign_row(campaign_id, template, options, by)
    compile_template(template)  # a sealed campaign keeps its template for good, so a broken one must never get there
    file = RecipientsFile(
        Path(path), FileOptions(options.format, options.delimiter, options.quote, options.encoding, options.column_map)
    )
    try:
        identity = identity_of(plan, file, options)
        token = secrets.token_hex(8)
        snapshot = Snapshot(store, plan, token)
        there = snapshot.claim()
        if there is not None:
            report = already_loaded(there, plan, identity, options, round(time.monotonic() - started, 3))
            return replace(report, called_off=there.state == "ready" and _called_off(store, there))
        try:
            if options.expires_at is not None:
                check_end(options.expires_at, store.read(lambda reader: reader.now()))
            with _patient_collector():
                fit = TemplateFit(template)
                return _Load(store, plan, file, snapshot, token, options, progress, fit).run(
                    identity, template, by, started
                )
        except BaseException:
            # The store may be what failed; then the next load clears up.
            with suppress(StoreError):
                snapshot.abandon()
            raise
    finally:
        file.close()


def _called_off(store: Store, campaign: Campaign) -> bool:
    return store.read(lambda reader: called_off(reader, campaign.campaign_id))


@contextmanager
def _patient_collector() -> Iterator[None]:
    """A load makes millions of tuples and no cycles: looking for those after every 700 objects costs a tenth of it."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Load:
    """One load that holds its campaign."""

    def __init__(
        self,
        store: Store,
        plan: Campaign,
        file: RecipientsFile,
        snapshot: Snapshot,
        token: str,
        options: LoadOptions,
        progress: Optional[Callable[[LoadProgress], None]],
        fit: TemplateFit,
    ) -> None:
        key = store_key(store)
        defaults = orjson.loads(plan.options)
        self._checks = RowChecks(
            default_locale=defaults["default_locale"],
            default_timezone=defaults["default_timezone"],
            strict=options.strict,
            address_key=lambda address: address_key(key, address),
        )
        self._store = store
        self._plan = plan
        self._file = file
        self._snapshot = snapshot
        self._batch_size = options.batch_size
        self._rejects = Rejects(options.rejects_folder, plan.campaign_id, token)
        self._staging = Staging()
        self._fit = fit
        self._progress = progress or (lambda _: None)
        self._read = self._rejected = self._duplicate = self._blank = 0

    def run(self, identity: dict[str, Any], template: TemplateSource, by: str, started: float) -> LoadReport:
        try:
            self._rejects.open()
            self._stage()
            if not self._staging.rows:
                raise self._nobody()
            sealed = self._write()
            rejects_file = self._rejects.publish()
            report = LoadReport(
                campaign_id=self._plan.campaign_id,
                recipients=sealed.recipients,
                batches=sealed.batches,
                rows_read=self._read,
                rows_rejected=self._rejected,
                rows_duplicate=self._duplicate,
                rejected_by_reason=dict(sorted(self._rejects.reasons.items())),
                warnings=dict(sorted((self._checks.warnings + Counter(blank_rows=self._blank)).items())),
                rejects_file=str(rejects_file) if rejects_file is not None else None,
                snapshot_hash=sealed.snapshot_hash,
                seconds=round(time.monotonic() - started, 3),
                default_language=self._fit.default_language,
                unused_columns=self._fit.unused_columns(self._checks.columns),
                missing_variables=self._fit.missing_variables(self._checks.given),
            )
            kept = {name: value for name, value in asdict(report).items() if name in KEPT}
            # Pinned, not compared: the same file loaded again after a new key was made is still the same load.
            pinned = {"load": kept, "unsubscribe_key": self._store.read(newest_key)}
            self._snapshot.seal(sealed, {**identity, **pinned}, to_row(template, COMMIT_TIME, by))
            return replace(report, called_off=_called_off(self._store, self._plan))
        finally:
            self._staging.close()
            self._rejects.drop()

    def _stage(self) -> None:
        """Read the file to its end: staged is what will be the snapshot, all else is in the rejects file."""
        last_beat = time.monotonic()
        for chunk in self._file.chunks():
            good, bad = self._checks.judge(chunk.rows)
            if good:
                self._fit.check_columns(self._checks, self._file.format, str(self._file.path))
            self._staging.add(good)
            self._rejects.add(sorted([*chunk.rejects, *bad]))
            self._read += len(chunk.rows) + len(chunk.rejects)
            self._rejected += len(chunk.rejects) + len(bad)
            self._blank += chunk.blank
            self._tell("reading", self._file.position, self._file.size)
            if time.monotonic() - last_beat > BEAT_S:
                self._snapshot.beat()
                last_beat = time.monotonic()
        self._snapshot.beat()
        for duplicates in self._staging.drop_duplicates():
            self._rejects.add(duplicates)
            self._duplicate += len(duplicates)
        self._snapshot.beat()

    def _write(self) -> Sealed:
        sealed = Sealed("", 0, 0)
        with closing(self._staging.ordered()) as rows:
            for sealed in self._snapshot.write(self._fit.counted(rows), self._batch_size):
                self._tell("writing", sealed.recipients, self._staging.rows)
        return sealed

    def _nobody(self) -> LoadFault:
        """The fault for a file from which nobody could be taken: a campaign without recipients is a mistake."""
        place = str(self._file.path)
        if not self._read:
            return LoadFault("holds column names and nobody", place, "export the list again")
        published = self._rejects.publish()
        reasons = ", ".join(f"{times} x {reason}" for reason, times in self._rejects.reasons.most_common(5))
        return LoadFault(f"none of its {self._read} rows can be taken ({reasons})", place, f"see {published}")

    def _tell(self, stage: str, done: int, total: int) -> None:
        self._progress(LoadProgress(stage, done, total, self._read, self._rejected, self._duplicate))
