"""What one letter may cost: bytes per part, turns of loops, CPU time. Counted while it is rendered, in any thread.

No signal and no timer: the compiled template itself reports each turn of a loop, each filter and each call
(`environment.py` sees to that), so a template that never ends stops itself, and one that grows stops before it
has filled memory. Two of the three limits are counts, so that the same letter fails the same way everywhere.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, Optional

# One part of one letter, in bytes of UTF-8. Mailboxes clip far earlier (Gmail at 102 KiB of HTML).
PART_BYTES: Final = 1_000_000
# CPU time of the thread, not time on the wall: a busy machine refuses nobody.
LETTER_S: Final = 1.0
STEPS: Final = 1_000_000
PIECES: Final = 1_000_000
# Everything that filters, macros and operators make on the way to the parts.
WORKING_CHARACTERS: Final = 8 * PART_BYTES
# Nested lists double with each turn; what a letter lists has far fewer members.
MEMBERS: Final = 100_000
# Python refuses to write more digits than this (sys.int_info.default_max_str_digits).
INTEGER_BITS: Final = 14_000

_CHUNK: Final = 256
_STEPS_BETWEEN_LOOKS: Final = 16


class TooLarge(Exception):
    """A part, or what is needed to make it, passes its size limit."""


class TooSlow(Exception):
    """A letter takes more turns, or more CPU time, than one may."""


class Sheet:
    """What one letter is written on: where written values go, and what the letter has used so far.

    One per thread at a time (`Desk`). `take` is given every value that is written where the output streams;
    what it returns goes into the output. `hold` and `release` surround what is rendered into a buffer: values
    written there stay part of the buffer's text.
    """

    __slots__ = ("_charged", "_clock", "_deadline", "_held", "_steps", "take", "values")

    def __init__(self, clock: Callable[[], float] = time.thread_time) -> None:
        self._clock = clock
        self._held: list[Callable[[Any], Any]] = []
        self.start()

    def start(self) -> None:
        """Begin a letter."""
        self.values: list[str] = []
        self.take: Callable[[Any], Any] = str
        self._held.clear()
        self._steps = 0
        self._charged = 0
        self._deadline: Optional[float] = None

    def step(self) -> None:
        """One turn of a loop, one filter, one call. TooSlow after STEPS of them or LETTER_S of CPU time."""
        self._steps += 1
        if not self._steps % _STEPS_BETWEEN_LOOKS:
            if self._steps >= STEPS:
                raise TooSlow
            self.look()

    def look(self) -> None:
        """TooSlow after LETTER_S of CPU time; before work that takes much longer than a look.

        The time runs from the first look on: a short letter takes none, and asking for CPU time is a call of the
        system that cost such a letter a fifth of its own.
        """
        now_s = self._clock()
        if self._deadline is None:
            self._deadline = now_s + LETTER_S
        elif now_s > self._deadline:
            raise TooSlow

    def charge(self, made: Any) -> Any:
        """Returns `made`, a text or a list that the template made; TooLarge once it has made too much."""
        if isinstance(made, str):
            self._charged += len(made)
            if self._charged > WORKING_CHARACTERS:
                raise TooLarge
        elif isinstance(made, list | tuple | dict):
            weigh(made)
        return made

    def hold(self) -> None:
        self._held.append(self.take)
        self.take = str

    def release(self) -> None:
        self.take = self._held.pop()

    def gather(self, pieces: Iterable[Any], chunk: int) -> tuple[Any, ...]:
        """All pieces of one part. TooLarge as soon as the texts among them, and the values, pass PART_BYTES."""
        stream = iter(pieces)
        gathered = tuple(islice(stream, chunk))
        if len(gathered) < chunk:
            return gathered
        every: list[Any] = []
        counted, size = len(self.values), 0
        while gathered:
            every += gathered
            size += sum([len(piece) for piece in gathered if isinstance(piece, str)])
            size += sum(map(len, self.values[counted:]))
            counted = len(self.values)
            if size > PART_BYTES or len(every) > PIECES:
                raise TooLarge
            gathered = tuple(islice(stream, chunk))
        return tuple(every)


class Desk(threading.local):
    """The sheet that this thread writes on."""

    sheet: Sheet


def chunk_for(variables_size: int) -> int:
    """How many pieces may be gathered between two looks at their size, so that a look is never far too late."""
    return max(1, min(_CHUNK, WORKING_CHARACTERS // (variables_size + 1)))


def check_part(text: str) -> None:
    """TooLarge for a finished part beyond PART_BYTES bytes of UTF-8."""
    if len(text) * 4 > PART_BYTES and len(text.encode("utf-8", "surrogatepass")) > PART_BYTES:
        raise TooLarge


def weigh(collection: Any) -> None:
    """TooLarge for a collection with more than MEMBERS members or WORKING_CHARACTERS, those nested in it included."""
    members = characters = 0
    level = [collection]
    while level:
        inner = level.pop()
        members += len(inner)
        for member in inner.values() if isinstance(inner, dict) else inner:
            if isinstance(member, str):
                characters += len(member)
            elif isinstance(member, list | tuple | dict):
                level.append(member)
        if members > MEMBERS or characters > WORKING_CHARACTERS:
            raise TooLarge


def joined(sheet: Sheet, pieces: Iterable[str]) -> str:
    """`"".join(pieces)`, measured before it is made."""
    texts = pieces if isinstance(pieces, Sequence) else sheet.gather(pieces, _CHUNK)
    if sum(map(len, texts)) > PART_BYTES:
        raise TooLarge
    return str(sheet.charge("".join(texts)))
