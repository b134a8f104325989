"""One table of times, and the inequalities between them.

Every wait of the delivery protocol stands here, per lane, so that none can be changed without the others being
looked at. All values are seconds. `check_times` is called when a job starts.

    tick            between two looks for due work
    window          work that is planned ahead
    hold_max        longest wait for a permit inside the pipeline; a later permit waits in the store
    visibility      from planned to planned again, if nobody claimed it (a lost reference)
    permit_ttl      a permit is used within this time, or dropped and another taken
    request_timeout one provider call, from the first byte to the verdict
    lease           from claim or advance until others may declare the batch in doubt
    margin          what the check before the first byte keeps between its own clock and the lease's end
    answer          once a request has wholly left, how long its answer is waited for where a kind of sender asks for
                    more than request_timeout (SMTP); the lease is renewed meanwhile
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """The times of one lane, in seconds."""

    tick_s: float
    window_s: float
    hold_max_s: float
    visibility_s: float
    permit_ttl_s: float
    request_timeout_s: float
    lease_s: float
    margin_s: float
    answer_s: float = 0.0

    @property
    def longest_call_s(self) -> float:
        """From asking for a permit until the last byte of a call that was not held up on its way has left."""
        return self.permit_ttl_s + self.request_timeout_s


CRITICAL = Times(
    tick_s=0.2,
    window_s=2.0,
    hold_max_s=2.0,
    visibility_s=8.0,
    permit_ttl_s=2.0,
    request_timeout_s=5.0,
    lease_s=15.0,
    margin_s=3.0,
)
BULK = Times(
    tick_s=0.2,
    window_s=5.0,
    hold_max_s=2.0,
    visibility_s=30.0,
    permit_ttl_s=2.0,
    request_timeout_s=30.0,
    lease_s=60.0,
    margin_s=5.0,
    answer_s=600.0,  # RFC 5321 4.5.3.2.6
)
DEFAULTS: dict[str, Times] = {"critical": CRITICAL, "high": CRITICAL, "bulk": BULK}


def check_times(times: Times, lane: str) -> list[str]:
    """Every broken inequality of a lane's times, as a sentence that names both values; empty when all hold."""
    rules = [
        (times.tick_s > 0, "tick_s must be more than 0"),
        (
            times.lease_s > times.request_timeout_s + times.margin_s + times.permit_ttl_s,
            f"lease_s ({times.lease_s:g}) must be more than request_timeout_s ({times.request_timeout_s:g}) + margin_s "
            f"({times.margin_s:g}) + permit_ttl_s ({times.permit_ttl_s:g}): else a request could outlive its lease, "
            "or a fresh permit could never be used",
        ),
        (
            times.visibility_s > times.hold_max_s + times.tick_s,
            f"visibility_s ({times.visibility_s:g}) must be more than hold_max_s ({times.hold_max_s:g}) + tick_s "
            f"({times.tick_s:g}): else a batch that only waits would be planned twice",
        ),
        (
            times.visibility_s > times.window_s,
            f"visibility_s ({times.visibility_s:g}) must be more than window_s ({times.window_s:g}): else work that "
            "stands in line would be planned twice",
        ),
        (times.margin_s > 0, "margin_s must be more than 0: clocks are read before they are used"),
        (times.permit_ttl_s > 0, "permit_ttl_s must be more than 0"),
        (times.request_timeout_s > 0, "request_timeout_s must be more than 0"),
        (times.answer_s >= 0, "answer_s must be 0 or more"),
    ]
    return [f"lane {lane}: {sentence}" for holds, sentence in rules if not holds]
