"""The calls of one request to SES, those that follow when SES refuses one, and what became of each letter."""

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from schemas.letters import Letter
from sendonce.senders.base import Reply, Verdict
from sendonce.senders.replies import joined
from sendonce.senders.ses_body import RECIPIENTS_MAX, Call
from sendonce.senders.ses_replies import Judgement, Result

# From so many letters on, an attempt in which SES refuses everything and blames nobody is held against the account.
_ENOUGH: Final = 8
_LATE: Final = Result(Verdict.NOT_SENT, "no_time_left")


class Attempt:
    """Safe for threads: `work` may run in several at once.

    post: makes one call within so many seconds, and says what it proved and SES's own id of it. again: a call for some
    letters of another. No letter is in a second call unless SES refused the first one whole.
    """

    def __init__(
        self,
        post: Callable[[Call, float], tuple[Judgement, str]],
        again: Callable[[Sequence[Letter]], Call],
        calls: Sequence[Call],
        clock: Callable[[], float],
        timeout_s: float,
    ) -> None:
        self._post = post
        self._again = again
        self._clock = clock
        self._ends_s = clock() + timeout_s
        self._waiting = deque(calls)
        self._changing = threading.Lock()
        self._found: dict[int, Result] = {}
        self._refs: list[str] = []
        self._refused_whole = 0
        self._taken = False
        self._stop: Result | None = None
        letters = sum(len(call.letters) for call in calls)
        most = 2 * math.ceil(math.log2(min(letters, RECIPIENTS_MAX))) + 1
        self._hopeless_after = most if letters >= _ENOUGH else math.inf

    def work(self) -> None:
        """Make calls until none waits."""
        while True:
            try:
                call = self._waiting.popleft()
            except IndexError:
                return
            self._deliver(call)

    def _deliver(self, call: Call) -> None:
        """Make a call; if SES will not take it whole, its halves, down to the letter that is to blame."""
        judgement = self._make(call)
        if judgement.divide and len(call.letters) > 1:
            middle = len(call.letters) // 2
            self._deliver(self._again(call.letters[:middle]))
            self._deliver(self._again(call.letters[middle:]))
            return
        with self._changing:
            for letter, result in zip(call.letters, judgement.results, strict=True):
                self._found[letter.ordinal] = result

    def _make(self, call: Call) -> Judgement:
        held_back = self._held_back()
        if held_back is not None:
            return Judgement([held_back] * len(call.letters))
        judgement, ref = self._post(call, max(0.001, self._ends_s - self._clock()))
        with self._changing:
            self._refs.append(ref)
            self._taken = self._taken or any(one.verdict is Verdict.ACCEPTED for one in judgement.results)
            self._stop = self._stop or judgement.stop
            if judgement.divide:
                self._refused_whole += 1
                if not self._taken and self._refused_whole >= self._hopeless_after:
                    self._stop = self._stop or _hopeless(judgement.results[0])
        return judgement

    def _held_back(self) -> Result | None:
        """None, or why no further call is made: after anything but yes or no, the rest waits for a later attempt."""
        if self._stop is not None:
            return replace(self._stop, verdict=Verdict.NOT_SENT)
        return _LATE if self._clock() >= self._ends_s else None

    def reply(self) -> tuple[Reply, str]:
        """One reply for all letters, the commonest result and the others by ordinal; and what SES said of a halt."""
        found = self._found
        if len(found) >= _ENOUGH and all(one.blind for one in found.values()):
            self._stop = self._stop or _hopeless(next(iter(found.values())))
        stop = self._stop
        if stop is not None and stop.reason == "refused_all":
            found = {ordinal: stop if one.blind else one for ordinal, one in found.items()}
        results = {ordinal: (one.verdict, one.outcome, one.detail) for ordinal, one in found.items()}
        ((verdict, outcome), _), *_ = Counter(result[:2] for result in results.values()).most_common(1)
        odd = stop or next((one for one in found.values() if one.verdict is not Verdict.ACCEPTED), None)
        reply = Reply(
            verdict,
            odd.reason if odd is not None else "",
            outcome,
            provider_ref=joined(self._refs),
            retry_after_s=stop.retry_after_s if stop is not None else None,
            halts_sender=stop is not None and stop.halts,
            throttled=stop is not None and stop.throttled,
            answered=stop is None,
            exceptions={o: result for o, result in results.items() if result[:2] != (verdict, outcome)},
        )
        return reply, stop.detail if stop is not None and stop.halts else ""


def _hopeless(refusal: Result) -> Result:
    return Result(Verdict.NOT_SENT, "refused_all", detail=refusal.detail, halts=True)
