"""Writing a campaign's snapshot: claimed by one load at a time, invisible until it is sealed in one transaction.

The campaign's row in state `loading` is the claim: its options name the load that holds it, its `changed_at` is that
load's last sign of life, in store time. Each transaction that writes or deletes rows first reads the claim, so a load
that was overtaken (stopped for minutes, then woken) can change nothing any more.
"""

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from itertools import count, groupby, islice, repeat
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, Final, Optional

import orjson

from schemas.ids import shard_of
from schemas.outcomes import Outcome
from schemas.tables import COMMIT_TIME, Batch, Campaign, Recipient, TemplateContent
from sendonce.control.campaigns import CANCELLED, LOADING, READY
from sendonce.control.faults import UnknownCampaign, WrongState
from sendonce.control.load_faults import LoadFailed, LoadFault
from sendonce.control.staging import StagedRow
from sendonce.stores.base import ANY_SHARD, Store, Tx

# A load shows a sign of life at least every BEAT_S; one that showed none for DEAD_AFTER_S may be overtaken.
BEAT_S: Final = 5.0
DEAD_AFTER_S: Final = 60.0

# The reason of a `loading` campaign that was sealed and is being taken out again.
UNLOADING: Final = "unloading"

# Rows and characters of variables in one transaction: others that write to the store wait for no more than that.
_WRITE_ROWS: Final = 2_000
_WRITE_CHARACTERS: Final = 4 << 20

# Stands in a batch's `due_at` until the transaction that writes it tells the store's time.
_LATER: Final = datetime(1970, 1, 1, tzinfo=UTC)

# What of a recipient the snapshot's hash covers.
_CONTENT: Final = attrgetter("recipient_id", "email", "locale", "timezone", "template_variables")


@dataclass(frozen=True)
class Sealed:
    """What stands in a sealed snapshot. `snapshot_hash` is SHA-256 over its recipients in order, without keys of the

    store, the batch size and the template's hash: equal for equal snapshots in any store.
    """

    snapshot_hash: str
    recipients: int
    batches: int


class Snapshot:
    """One load's hold on a campaign. `draft` is the campaign's row as it shall be, `token` names this load alone."""

    def __init__(self, store: Store, draft: Campaign, token: str) -> None:
        self._store = store
        self._rows = min(_WRITE_ROWS, store.rows_at_once)
        self._id = draft.campaign_id
        pid = os.getpid()
        self._owner = {"token": token, "host": socket.gethostname(), "pid": pid, "started": _started(pid)}
        self._draft = replace(
            draft, state=LOADING, options=_text({"loader": self._owner}), created_at=COMMIT_TIME, changed_at=COMMIT_TIME
        )

    def claim(self) -> Optional[Campaign]:
        """Take the campaign for this load; what a dead load left of it is cleared. Its row if it is past that.

        LoadFault while another load holds it.
        """

        def work(tx: Tx) -> tuple[Optional[Campaign], bool]:
            found = tx.get(Campaign, self._id)
            if found is not None and found.state != LOADING:
                return found, False
            if found is not None:
                self._check_dead(_owner_of(found), found.changed_at, tx.now())
            tx.put(self._draft)
            return None, found is not None

        there, left_over = self._store.transact(work, tag="load_claim")
        if left_over:
            self._clear()
        return there

    def beat(self) -> None:
        """Show a sign of life. LoadFailed if the campaign is no longer ours."""
        self._store.transact(lambda tx: tx.put(replace(self._mine(tx), changed_at=COMMIT_TIME)), tag="load_beat")

    def write(self, rows: Iterable[StagedRow], batch_size: int) -> Iterator[Sealed]:
        """Cut ordered rows into batches and write them; yields what stands after each transaction, last the whole."""
        digest = sha256(orjson.dumps([self._draft.template_hash, batch_size]))
        recipients = batches = 0
        for people, ended in self._chunks(rows, batch_size):
            self._store.transact(lambda tx, new=(people, ended): self._insert(tx, *new), tag="load_write")  # type: ignore[misc]
            # No text of these holds a control character (JSON writes them otherwise), so nothing can be read two ways.
            digest.update("".join(["\x1f".join(_CONTENT(row)) + "\x1e" for row in people]).encode())
            recipients += len(people)
            batches += len(ended)
            yield Sealed(digest.hexdigest(), recipients, batches)

    def seal(self, sealed: Sealed, options: dict[str, Any], template: TemplateContent) -> None:
        """Make the campaign ready, with its snapshot and its template, in one transaction. LoadFailed if overtaken."""

        def work(tx: Tx) -> None:
            mine = self._mine(tx)
            stored = tx.get(TemplateContent, template.template_hash)
            tx.put(
                replace(
                    mine,
                    state=READY,
                    options=_text(options),
                    snapshot_hash=sealed.snapshot_hash,
                    recipients=sealed.recipients,
                    batches=sealed.batches,
                    changed_at=COMMIT_TIME,
                    sealed_at=COMMIT_TIME,
                )
            )
            if stored is None:
                tx.put(template)

        self._store.transact(work, tag="load_seal")

    def take_back(self) -> None:
        """Make a sealed campaign that was never started ours, as if it was still being loaded; its rows stay for

        `abandon`. One that a dead process began to take back is taken over. UnknownCampaign; WrongState for any other;
        LoadFault while its load, or another one's taking back, is running.
        """

        def work(tx: Tx) -> None:
            found = tx.get(Campaign, self._id)
            if found is None:
                raise UnknownCampaign(self._id)
            if found.state == LOADING and found.state_reason == UNLOADING:
                self._check_dead(_owner_of(found), found.changed_at, tx.now())
            elif found.state != READY or found.kind != "campaign":
                raise WrongState(self._id, found.state, "unload")
            tx.put(
                replace(
                    found,
                    state=LOADING,
                    state_reason=UNLOADING,
                    options=_text({"loader": self._owner}),
                    snapshot_hash="",
                    sealed_at=None,
                    changed_at=COMMIT_TIME,
                )
            )

        self._store.transact(work, tag="unload")

    def abandon(self, progress: Callable[[int], None] = lambda removed: None) -> None:
        """Leave nothing behind: delete the rows, and the campaign if nobody cancelled it meanwhile.

        progress: called with the number of recipients deleted so far.
        """
        self._clear(progress)

        def work(tx: Tx) -> None:
            found = tx.get(Campaign, self._id)
            if found is not None and found.state == LOADING and _owner_of(found) == self._owner:
                tx.delete(found)

        self._store.transact(work, tag="load_abandon")

    def _check_dead(self, owner: dict[str, Any], seen: datetime, now: datetime) -> None:
        if owner.get("host") == self._owner["host"] and not _alive(owner.get("pid"), owner.get("started")):
            return
        silent = now - seen
        if silent < timedelta(seconds=DEAD_AFTER_S):
            raise LoadFault(
                f"another load of it is running (process {owner.get('pid')} on {owner.get('host')}, last sign of life "
                f"{silent.total_seconds():.0f} s ago)",
                f"campaign {self._id}",
                f"wait for it; if it is dead, try again in {DEAD_AFTER_S:.0f} s",
            )

    def _mine(self, tx: Tx) -> Campaign:
        found = tx.get(Campaign, self._id)
        if found is not None and _owner_of(found) == self._owner:
            if found.state == LOADING:
                return found
            if found.state == CANCELLED:
                raise LoadFailed("it was cancelled while it was loaded", f"campaign {self._id}", "choose another id")
        raise LoadFailed("another load took it over", f"campaign {self._id}", "let that one finish")

    def _clear(self, progress: Callable[[int], None] = lambda removed: None) -> None:
        """Delete what rows the campaign has, while it is ours (cancelled or not), a bounded number at once."""

        def work(tx: Tx, kind: type[Any]) -> int:
            found = tx.get(Campaign, self._id)
            if found is None or _owner_of(found) != self._owner:
                return 0
            rows = tx.scan(kind, ANY_SHARD, self._id, limit=self._rows)
            tx.delete(*rows)
            if found.state == LOADING:
                tx.put(replace(found, changed_at=COMMIT_TIME))
            return len(rows)

        for kind in (Batch, Recipient):
            removed = 0
            while now := self._store.transact(lambda tx, kind=kind: work(tx, kind), tag="load_clear"):  # type: ignore[misc]
                removed += now
                progress(removed if kind is Recipient else 0)

    def _insert(self, tx: Tx, people: Sequence[Recipient], ended: Sequence[Batch]) -> None:
        mine = self._mine(tx)
        now = tx.now()
        tx.insert(*people)
        tx.insert(*(replace(batch, due_at=now) for batch in ended))
        tx.put(replace(mine, changed_at=COMMIT_TIME))

    def _chunks(self, rows: Iterable[StagedRow], batch_size: int) -> Iterator[tuple[list[Recipient], list[Batch]]]:
        """What to write in one transaction: recipients in order, and the batches that end among them."""
        people: list[Recipient] = []
        ended: list[Batch] = []
        characters = 0
        for batch_no, (timezone, members) in enumerate(_batches(rows, batch_size)):
            shard = shard_of(self._id, batch_no)
            # The columns of a staged row are the last ones of a recipient.
            columns = zip(*members, strict=True)
            for person in map(Recipient, repeat(shard), repeat(self._id), repeat(batch_no), count(), *columns):
                people.append(person)
                characters += len(person.template_variables)
                if len(people) == self._rows or characters >= _WRITE_CHARACTERS:
                    yield people, ended
                    people, ended, characters = [], [], 0
            ended.append(self._batch(shard, batch_no, len(members), timezone))
        if people or ended:
            yield people, ended

    def _batch(self, shard: int, batch_no: int, size: int, timezone: str) -> Batch:
        return Batch(
            shard=shard,
            campaign_id=self._id,
            batch_no=batch_no,
            size=size,
            timezone=timezone,
            state="pending",
            open_state="pending",
            due_at=_LATER,
            outcomes=bytes([Outcome.OPEN]) * size,
            n_open=size,
        )


def _batches(rows: Iterable[StagedRow], batch_size: int) -> Iterator[tuple[str, list[StagedRow]]]:
    """Slices of ordered rows with their time zone. None spans two."""
    for timezone, in_zone in groupby(rows, key=itemgetter(4)):
        while members := list(islice(in_zone, batch_size)):
            yield timezone, members


def _text(options: dict[str, Any]) -> str:
    return orjson.dumps(options, option=orjson.OPT_SORT_KEYS).decode()


def _owner_of(campaign: Campaign) -> dict[str, Any]:
    owner = orjson.loads(campaign.options).get("loader", {})
    return owner if isinstance(owner, dict) else {}


def _alive(pid: Any, started: Any) -> bool:
    """Whether a process of this machine lives and is the one that was meant: numbers are used again."""
    if type(pid) is not int or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return started in ("", _started(pid))


def _started(pid: int) -> str:
    """When a process started, in the kernel's own ticks; "" where it does not tell (proc(5), stat, field 22)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""
