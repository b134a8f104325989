"""Time zones and locales as people write them in lists, and the one name that each has here.

Zones come from the `tzdata` package, not from the machine: a list loads alike everywhere. Every name that comes out is
one that `zoneinfo.ZoneInfo` knows.
"""

import difflib
import re
from collections.abc import Iterable
from functools import cache, lru_cache
from importlib import resources
from typing import Final

from babel import Locale
from babel.core import get_global

_OFFSET: Final = re.compile(r"(?:utc|gmt)?([+-])([0-9]{1,2})(?::?([0-9]{2}))?")
# Offsets beside the whole hours that some zone keeps all year round, and that zone (IANA tzdata).
_ODD_OFFSETS: Final = {
    -570: "Pacific/Marquesas",
    210: "Asia/Tehran",
    270: "Asia/Kabul",
    330: "Asia/Kolkata",
    345: "Asia/Kathmandu",
    390: "Asia/Yangon",
    525: "Australia/Eucla",
    570: "Australia/Darwin",
}
# Names that tzdata lists and nobody lives in: a machine's own default, a placeholder.
_NO_PLACES: Final = frozenset({"Factory", "localtime", "posixrules"})

_LOCALE: Final = re.compile(r"([A-Za-z]{2,3})(?:[-_]([A-Za-z]{4}))?(?:[-_]([A-Za-z]{2}|[0-9]{3}))?")


@lru_cache(maxsize=4096)
def zone_name(raw: str) -> str | None:
    """The IANA name of a time zone, or None for an unknown one.

    Letter case, outer spaces and spaces for underscores do not matter; older names stay as they are. An offset
    (`+05:30`, `UTC+5:30`, `GMT+2`, `-0800`, `Z`) becomes the zone that keeps it all year: `Etc/GMT-2` for `GMT+2`
    (its sign is POSIX's, the other way round), a place where no whole hour will do. Abbreviations such as `IST`,
    which several zones share, are unknown unless tzdata itself has them (`EST`).
    """
    spelling = raw.strip().casefold().replace(" ", "_")
    known = _zones().get(spelling)
    if known is not None:
        return known
    if spelling == "z":
        return "UTC"
    offset = _OFFSET.fullmatch(spelling)
    return _zone_of_offset(*offset.groups()) if offset is not None else None


@lru_cache(maxsize=4096)
def locale_name(raw: str) -> str | None:
    """The locale as `language[-Script][-REGION]` (BCP 47: `pt-BR`, `zh-Hant-TW`, `es-419`), or None for an unknown one.

    `pt_br` and ` PT-BR ` are `pt-BR`; replaced language codes take their new one (`iw` is `he`). Languages, scripts and
    regions are those of CLDR.
    """
    match = _LOCALE.fullmatch(raw.strip())
    if match is None:
        return None
    language, script, region = match.groups()
    language = language.lower()
    languages, scripts, regions = _cldr()
    if language not in languages:
        language = get_global("language_aliases").get(language, "")
        if language not in languages:
            return None
    parts = [language]
    if script is not None:
        parts.append(script.title())
        if parts[-1] not in scripts:
            return None
    if region is not None:
        parts.append(region.upper())
        if parts[-1] not in regions:
            return None
    return "-".join(parts)


def nearest_zone(raw: str) -> str | None:
    """The zone that was probably meant: by its place alone (`Paris`), or by a small slip (`Europe/Pariss`)."""
    spelling = raw.strip().casefold().replace(" ", "_")
    places = {name.rsplit("/", 1)[-1]: name for name in sorted(_zones(), reverse=True)}
    close = difflib.get_close_matches(spelling, _zones(), n=1, cutoff=0.75)
    if not close:
        close = [
            places[place] for place in difflib.get_close_matches(spelling.rsplit("/", 1)[-1], places, n=1, cutoff=0.8)
        ]
    return _zones()[close[0]] if close else None


def nearest_locale(raw: str, among: Iterable[str]) -> str | None:
    """The one of some locales that was probably meant: the same language, or a small slip."""
    plain = {name.casefold(): name for name in among}
    spelling = raw.strip().casefold().replace("_", "-")
    same = [name for name in plain if name.split("-")[0] == spelling.split("-")[0][:2] and len(spelling) > 1]
    close = difflib.get_close_matches(spelling, plain, n=1, cutoff=0.5) or same
    return plain[close[0]] if close else None


@cache
def _zones() -> dict[str, str]:
    listed = resources.files("tzdata").joinpath("zones").read_text(encoding="utf-8").split()
    return {name.casefold(): name for name in listed if name not in _NO_PLACES}


def _zone_of_offset(sign: str, hours: str, minutes: str | None) -> str | None:
    if int(minutes or 0) >= 60:
        return None
    offset = int(hours) * 60 + int(minutes or 0)
    if sign == "-":
        offset = -offset
    if offset == 0:
        return "UTC"
    if offset % 60:
        return _ODD_OFFSETS.get(offset)
    return _zones().get(f"etc/gmt{-offset // 60:+d}")


@cache
def _cldr() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    english = Locale("en")
    unknown = {"ZZ", "Zzzz", "und", "root"}
    languages, scripts, regions = (
        frozenset(map(str, names)) - unknown for names in (english.languages, english.scripts, english.territories)
    )
    return languages, scripts, regions
