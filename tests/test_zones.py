"""Time zones and locales as lists have them."""

import csv
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from sendonce.zones import _ODD_OFFSETS, _zones, locale_name, nearest_locale, nearest_zone, zone_name

CASES = Path(__file__).parent / "cases"


def utc_of(local: str, zone: str) -> str:
    return datetime.fromisoformat(local).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC).strftime("%H:%MZ")


def test_old_names_are_known_and_abbreviations_of_several_zones_are_not() -> None:
    zones = json.loads((CASES / "legacy-names" / "zones.json").read_text())

    assert [zone_name(name) for name in zones["accept"]] == zones["accept"]
    assert [zone_name(name) for name in zones["unknown"]] == [None] * len(zones["unknown"])


def test_etc_gmt_plus_5_is_behind_utc() -> None:
    assert utc_of("2026-01-15T09:00:00", zone_name("Etc/GMT+5") or "") == "14:00Z"


def test_offsets_are_the_zones_that_keep_them() -> None:
    wanted = json.loads((CASES / "offset-strings" / "expected-if-supported.json").read_text())

    found = {raw: zone_name(raw) for raw in wanted["utc"]}

    assert {raw: zone and utc_of(wanted["local"], zone) for raw, zone in found.items()} == wanted["utc"]


@pytest.mark.parametrize(
    ("raw", "zone"),
    [
        ("+00:00", "UTC"),
        ("UTC-3", "Etc/GMT+3"),
        ("+14:00", "Etc/GMT-14"),
        ("-12", "Etc/GMT+12"),
        ("+5:45", "Asia/Kathmandu"),
        ("+15:00", None),
        ("-13", None),
        ("+05:15", None),
        ("+05:60", None),
        ("5", None),
        ("", None),
        ("Factory", None),
        ("../../etc/passwd", None),
    ],
)
def test_offsets_at_the_edges(raw: str, zone: str | None) -> None:
    assert zone_name(raw) == zone


@pytest.mark.parametrize(("minutes", "zone"), _ODD_OFFSETS.items())
def test_a_zone_that_stands_for_an_offset_keeps_it_all_year(minutes: int, zone: str) -> None:
    days = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in range(0, 365 * 3, 7)]

    assert {day.astimezone(ZoneInfo(zone)).utcoffset() for day in days} == {timedelta(minutes=minutes)}


def test_letter_case_and_spaces_do_not_matter() -> None:
    with open(CASES / "case-space" / "recipients.csv", encoding="utf-8", newline="") as handle:
        found = [zone_name(row["timezone"]) for row in csv.DictReader(handle)]

    assert found == ["America/New_York", "Europe/Paris", "America/New_York", "Asia/Tokyo"]


def test_every_name_is_a_zone_on_a_machine_without_zones_of_its_own() -> None:
    """legacy-names: slim images have no system zones; all must come from the tzdata package."""
    check = (
        "from zoneinfo import ZoneInfo\nfrom sendonce.zones import _zones, zone_name\n"
        "for name in _zones().values(): assert zone_name(name) == ZoneInfo(name).key, name\n"
        "print(len(_zones()))"
    )
    bare = {**os.environ, "PYTHONTZPATH": ""}

    done = subprocess.run([sys.executable, "-c", check], env=bare, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(_zones()) > 500


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("en", "en"),
        ("EN", "en"),
        ("pt-BR", "pt-BR"),
        (" pt_br ", "pt-BR"),
        ("zh-hant-tw", "zh-Hant-TW"),
        ("es-419", "es-419"),
        ("sr-Latn", "sr-Latn"),
        ("iw", "he"),
        ("fil", "fil"),
        ("xx", None),
        ("english", None),
        ("en-ZZ", None),
        ("en-Abcd", None),
        ("en_US.UTF-8", None),
        ("root", None),
        ("und", None),
        ("", None),
        ("en-", None),
        ("\uff45\uff4e", None),
    ],
)
def test_locales(raw: str, name: str | None) -> None:
    assert locale_name(raw) == name


@pytest.mark.parametrize(
    ("raw", "meant"),
    [
        ("Paris", "Europe/Paris"),
        ("Europe/Pariss", "Europe/Paris"),
        ("hochiminh", "Asia/Ho_Chi_Minh"),
        ("america/newyork", "America/New_York"),
        ("Mars/Olympus", None),
        ("", None),
    ],
)
def test_the_zone_that_was_probably_meant(raw: str, meant: str | None) -> None:
    assert nearest_zone(raw) == meant


@pytest.mark.parametrize(
    ("raw", "meant"), [("enn", "en"), ("vie", "vi"), ("fra", "fr"), ("pt_BRR", "pt-BR"), ("klingon", None), ("", None)]
)
def test_the_locale_that_was_probably_meant(raw: str, meant: str | None) -> None:
    assert nearest_locale(raw, ["en", "fr", "vi", "pt-BR"]) == meant
