"""How far streams are, at a price that does not grow with them.

A stream has a batch for every send: summing up hundreds of thousands of them at every tick would hold up what is to be
sent. So a look counts some shards only, keeps their sums in this process, and goes on where it stopped; the sum over
all shards is the stream's progress. What is open stands in an index of its own and is never old.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Optional

from schemas.ids import SHARDS
from schemas.tables import Campaign, Progress
from sendonce.control.progress import Counts, count, progress_of, put_progress, together
from sendonce.stores.base import Reader, Store

# A look counts shards until it has seen so many batches: some 3 ms. Of 200,000 batches each is counted once a minute.
BATCHES_A_LOOK: Final = 3_000
LOOK_EVERY: Final = timedelta(seconds=1)
# Progress that has not changed is written again after so long, so that a person sees that somebody looks.
WRITE_EVERY: Final = timedelta(seconds=10)


@dataclass
class _Sums:
    looked_at: datetime
    shards: dict[int, Counts] = field(default_factory=dict)
    next: int = 0


class StreamSums:
    """The sums of one process. Forgets streams that are over."""

    def __init__(self) -> None:
        self._streams: dict[str, _Sums] = {}

    def look(self, store: Store, stream: Campaign, now: datetime) -> None:
        """Count some of a stream's shards, if it is time, and write its progress once all of them are known."""
        name = stream.campaign_id
        sums = self._streams.get(name)
        if sums is None:
            sums = self._streams[name] = _Sums(now)
        elif now - sums.looked_at < LOOK_EVERY:
            return
        sums.looked_at = now

        def summed(reader: Reader) -> Optional[Progress]:
            before = self._count(reader, name, sums)
            if len(sums.shards) < SHARDS:
                return None
            progress = progress_of(reader, stream, together(sums.shards.values()), before, now)
            worth = before is None or _moved(before, progress) or now - before.at >= WRITE_EVERY
            return progress if worth else None

        if (progress := store.read(summed)) is not None:
            put_progress(store, progress)

    def keep(self, names: Collection[str]) -> None:
        """Forget all streams but these."""
        for name in [name for name in self._streams if name not in names]:
            del self._streams[name]

    def _count(self, reader: Reader, name: str, sums: _Sums) -> Optional[Progress]:
        seen = 0
        for _ in range(SHARDS):
            counts = count(reader, name, sums.next)
            sums.shards[sums.next] = counts
            sums.next = (sums.next + 1) % SHARDS
            seen += sum(counts.batches.values())
            if seen >= BATCHES_A_LOOK:
                break
        return reader.get(Progress, name)


def _moved(before: Progress, after: Progress) -> bool:
    names = ("total", "n_open", "n_in_doubt", "batches_queued", "batches_sending", "batches_held", "batches_done")
    return any(getattr(before, name) != getattr(after, name) for name in names)
