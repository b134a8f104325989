"""The two clocks of a SQLite store, which all its processes share: store time, and the pace by which limits count.

Store time is the larger of the machine's clock and what a commit has shown. It is what people and due times go by, and
jumps ahead when the machine's clock is set ahead. A limit that counted by it would then let a window's worth through
at once, so limits count by pace: it goes forward by the time that really passed since the last commit, as the
machine's time since boot tells (CLOCK_BOOTTIME: nobody sets it, it goes on while the machine sleeps, and all processes
see the same). Over a reboot, and where there is no such clock, pace goes with store time.
"""

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SinceBoot(NamedTuple):
    """Microseconds since a boot, which has a name."""

    boot: str
    micros: int


class Kept(NamedTuple):
    """The clocks as the last commit left them, in microseconds (store time and pace: since 1970)."""

    now: int
    pace: int
    since_boot: SinceBoot

    def text(self) -> bytes:
        return f"{self.pace} {self.since_boot.micros} {self.since_boot.boot}".encode()


# Without a clock that nobody sets.
NO_BOOT = SinceBoot("-", 0)


@cache
def _boot() -> str:
    try:
        return _BOOT_ID.read_text().strip() or "-"
    except OSError:
        return "-"


def since_boot() -> SinceBoot:
    """This machine's time since boot; `NO_BOOT` where the system has no name for the boot."""
    boot = _boot()
    return NO_BOOT if boot == "-" else SinceBoot(boot, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000)


def no_since_boot() -> SinceBoot:
    return NO_BOOT


def kept_from(now: int, text: bytes) -> Kept:
    """ValueError for a text that `Kept.text` did not write."""
    pace, micros, boot = text.decode().split(" ")
    return Kept(now, int(pace), SinceBoot(boot, int(micros)))


def later(kept: Kept, now: int, here: Callable[[], SinceBoot], *, writing: bool) -> Kept:
    """The clocks at store time `now`; of a writer, pace too is later than every commit's."""
    mine = here()
    if mine.boot == kept.since_boot.boot and mine is not NO_BOOT:
        passed = mine.micros - kept.since_boot.micros
    else:
        passed = now - kept.now
    return Kept(now, kept.pace + max(passed, int(writing)), mine)
