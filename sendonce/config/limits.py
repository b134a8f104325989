"""Limits as people write them (`500/s`, `100000/day`, `10/5s`) and as the store keeps them. Unit: recipients."""

import math
import re
from datetime import UTC, date, datetime, time
from typing import Annotated, Any, Final, Optional

import orjson
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from schemas.tables import Limit

_TEXT: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(\d+(?:\.\d+)?)?\s*([a-z]+)\s*")
_SECONDS: Final = {
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip


def parse_per(text: object) -> tuple[float, float]:
    """Number and window in seconds: `100000/day` gives (100000.0, 86400.0). ValueError says the mend."""
    match = _TEXT.fullmatch(text.lower()) if isinstance(text, str) else None
    window_s = _SECONDS.get(match[3]) if match else None
    if match is None or window_s is None:
        raise ValueError(f"{text!r} is not a limit; write recipients per time, like 500/s, 15/min, 100000/day or 10/5s")
    number, window_s = float(match[1]), window_s * float(match[2] or 1)
    if not number or not window_s:
        raise ValueError(f"{text!r} lets nothing through; `sendonce pause` stops a campaign")
    return number, window_s


class LimitSetting(BaseModel):
    """One limit: `{rate: 500/s, burst: 500}` or `{cap: 100000/day}`.

    rate: a bucket; any window T holds at most burst + rate x T (burst: one second's worth unless given).
    cap: any sliding window holds at most that many, never one more.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate: Optional[str] = None
    burst: Optional[int] = None
    cap: Optional[str] = None

    @model_validator(mode="before")
    @classmethod
    def _one_kind(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            raise ValueError("a limit is {rate: 500/s, burst: 500} or {cap: 100000/day}")
        raw = {name: value for name, value in raw.items() if value is not None}
        if ("rate" in raw) == ("cap" in raw):
            raise ValueError("a limit has either rate or cap; write two limits for both")
        if "burst" in raw and ("cap" in raw or not isinstance(raw["burst"], int) or raw["burst"] < 1):
            raise ValueError("burst goes with rate and is a whole number of recipients, 1 or more")
        number, _ = parse_per(raw.get("rate", raw.get("cap")))
        if "cap" in raw and not number.is_integer():
            raise ValueError("a cap is a whole number of recipients per time, like 100000/day")
        return raw

    @property
    def name(self) -> str:
        """The limit's name within its scope: `rate`, or `cap:` with the window in seconds."""
        return "rate" if self.rate is not None else f"cap:{parse_per(self.cap)[1]:g}"

    def row(self, scope: str) -> Limit:
        """The row as applied anew: an untouched, full bucket (`level` null)."""
        if self.rate is None:
            most, window_s = parse_per(self.cap)
            return Limit(scope, self.name, "cap", most=int(most), window_s=window_s)
        number, window_s = parse_per(self.rate)
        per_s = number / window_s
        return Limit(scope, self.name, "rate", per_s=per_s, burst=self.burst or max(1, math.ceil(per_s)))


DAY_S: Final = 86400.0


class WarmUp(BaseModel):
    """A new account's or IP address's first days: `{start: 2026-12-01, per_day: [50, 100, 500, 1000]}`.

    In any 24 hours at most the number of the day in which they end, counted from `start` (a date is its midnight UTC);
    nothing before it, no limit of this kind after the last day.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: datetime
    per_day: Annotated[list[Annotated[int, Field(ge=1, strict=True)]], Field(min_length=1, max_length=366)]

    @field_validator("start", mode="before")
    @classmethod
    def _moment(cls, start: object) -> object:
        if isinstance(start, str):
            try:
                start = datetime.fromisoformat(start) if len(start) > 10 else date.fromisoformat(start)
            except ValueError:
                raise ValueError("must be a date like 2026-12-01, or a time with its zone") from None
        if isinstance(start, datetime):
            if start.tzinfo is None:
                raise ValueError("must name its zone, like 2026-12-01T08:00:00+01:00; a date alone is midnight UTC")
            return start.astimezone(UTC)
        if isinstance(start, date):
            return datetime.combine(start, time(), UTC)
        raise ValueError("must be a date like 2026-12-01, or a time with its zone")

    @field_validator("per_day")
    @classmethod
    def _rises(cls, per_day: list[int]) -> list[int]:
        if per_day != sorted(per_day):
            raise ValueError("must not fall from one day to the next")
        return per_day

    def row(self, scope: str) -> Limit:
        plan = orjson.dumps(self.per_day).decode()
        name = f"cap:{DAY_S:g}"
        return Limit(scope, name, "cap", most=self.per_day[-1], window_s=DAY_S, starts_at=self.start, plan=plan)


def most_at(limit: Limit, now: datetime) -> int | None:
    """How many recipients a cap lets through in the window that ends now; None when its plan is over: any number."""
    if limit.plan is None or limit.starts_at is None:
        return limit.most
    steps: list[int] = orjson.loads(limit.plan)
    passed_s = (now - limit.starts_at).total_seconds()
    if passed_s < 0:
        return 0
    step = int(passed_s // limit.window_s)
    return steps[step] if step < len(steps) else None
