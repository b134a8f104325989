"""Limits as people write them (`500/s`, `100000/day`, `10/5s`) and as the store keeps them. Unit: recipients."""

import math
import re
from typing import Any, Final, Optional

from pydantic import BaseModel, ConfigDict, model_validator

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
