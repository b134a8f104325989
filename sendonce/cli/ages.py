"""Ages on the command line: 90s, 30m, 2h, 3d, 2w."""

import re
from datetime import timedelta
from typing import Any, Final

import click

_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Age(click.ParamType[timedelta]):
    """A length of time before now, as a timedelta."""

    name = "AGE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        found = re.fullmatch(r"\s*([0-9]{1,6}(?:\.[0-9]+)?)\s*([smhdw])\s*", str(value))
        if found is None:
            self.fail(f"{value!r} is no age; write it like 90s, 30m, 2h, 3d or 2w", param, ctx)
        return timedelta(seconds=float(found[1]) * _SECONDS[found[2]])


AGE: Final = Age()
