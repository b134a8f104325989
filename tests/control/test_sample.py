"""The made-up list of the demo."""

import csv
import json
import unicodedata
from datetime import date, datetime
from pathlib import Path

import pytest

from sendonce.control.sample import write_sample
from sendonce.rendering.catalogue import VariableFault, find_template, manifest_of, variables_for
from tests.control.lists import Loads


def text_of(path: Path, rows: int, seed: int = 7) -> str:
    write_sample(path, rows, seed)
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(("rows", "seed"), [(1, 7), (2, 7), (50, 1), (3000, 7), (3000, 8)])
def test_exactly_the_wanted_number_becomes_recipients_with_bad_rows_on_top(
    loads: Loads, tmp_path: Path, rows: int, seed: int
) -> None:
    path = tmp_path / "sample.csv"
    write_sample(path, rows, seed)

    report = loads(path).report

    assert report.recipients == rows
    assert report.rows_duplicate >= 2
    assert {"bad_address", "bad_template_variables", "missing_email", "missing_recipient_id", "too_many_values"} <= set(
        report.rejected_by_reason
    )


def test_a_seed_makes_the_same_list(tmp_path: Path) -> None:
    first = text_of(tmp_path / "a.csv", 300)

    assert text_of(tmp_path / "b.csv", 300) == first
    assert text_of(tmp_path / "c.csv", 300, 8) != first


def test_the_people_are_of_many_scripts_and_zones_and_live_where_nobody_does(tmp_path: Path) -> None:
    rows = list(csv.DictReader(text_of(tmp_path / "a.csv", 2000).splitlines()))

    scripts = {unicodedata.name(row["name"][0]).split()[0] for row in rows if row["name"]}
    assert {"LATIN", "ARABIC", "CJK", "GREEK"} <= scripts
    assert {"en", "fr", "vi", "ar", "pt-BR", "de"} <= {row["locale"] for row in rows}
    assert len({row["timezone"] for row in rows}) > 12
    domains = {row["email"].rpartition("@")[2] for row in rows if "@" in row["email"]}
    assert all(domain.endswith(".example") for domain in domains)


def test_the_newsletter_takes_what_the_list_gives(loads: Loads, tmp_path: Path) -> None:
    template = find_template("newsletter")
    manifest = manifest_of(template)
    path = tmp_path / "sample.csv"
    write_sample(path, 500)

    found = loads(path, template=template, from_address="Shop <news@shop.example>")

    given, unfit = [], []
    for number, variables in found.variables.items():
        try:
            given.append(variables_for(manifest, variables))
        except VariableFault:
            unfit.append(number)
    assert {name for variables in given for name in json.loads(json.dumps(variables))} <= set(manifest.variables)
    assert {len(variables["picks"]) for variables in given} == {0, 1, 2, 3}
    assert sum("points" in variables for variables in given) > 300
    assert 1 <= len(unfit) <= 5, "a few letters are refused, so that a demo shows it"


def test_offers_end_after_the_day_of_the_list(tmp_path: Path) -> None:
    today = date(2031, 12, 28)
    write_sample(tmp_path / "a.csv", 300, today=today)

    rows = list(csv.DictReader((tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()))
    ends = [
        datetime.fromisoformat(found).date()
        for row in rows
        if row["template_variables"].endswith("}")
        and (found := json.loads(row["template_variables"]).get("offer_ends"))
    ]

    assert len(ends) > 30
    assert all(19 <= (end - today).days <= 30 for end in ends)
