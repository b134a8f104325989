"""Recipients files that broke other systems. Each is a file in tests/cases, byte for byte."""

import json

import pytest

from sendonce.control.load import LoadFault
from tests.control.lists import CASES, Loads


@pytest.mark.parametrize("file", ["recipients.csv", "quoted-header.csv"])
def test_a_byte_order_mark_is_no_part_of_the_first_column(loads: Loads, file: str) -> None:
    found = loads.case(f"bom-header/{file}")

    assert found.emails == {"1001": "ann@one.example", "1002": "bob@two.example"}
    assert found.variables["1001"] == {"name": "Ann"}


def test_ids_stay_the_text_they_are(loads: Loads) -> None:
    assert set(loads.case("leading-zero-ids/recipients.csv").people) == {"007", "7", "1e5", "100000"}
    assert set(loads.case("leading-zero-ids/bool-ids.csv").people) == {"true", "FALSE"}


def test_people_called_na_or_null_are_people(loads: Loads) -> None:
    found = loads.case("na-strings/recipients.csv")

    assert set(found.people) == {"NA", "null", "None", "nan", "N/A"}
    assert found.variables["NA"] == {"surname": "Null"}
    assert found.rejects == [
        {"line": 7, "column": "recipient_id", "reason": "missing_recipient_id", "detail": "every row needs an id"}
    ]
    surnames = loads.case("na-strings/extra-column.csv").variables
    assert surnames == {"1": {"surname": "Null"}, "2": {"surname": "NA"}}


def test_long_ids_keep_every_digit_beside_a_blank_one(loads: Loads) -> None:
    found = loads.case("bigint-blank/recipients.csv")

    assert set(found.people) == {"9007199254740993", "9007199254740992"}
    assert found.lines == {3: "missing_recipient_id"}
    long = loads.case("bigint-blank/very-long.csv")
    assert set(long.people) == {"12345678901234567890123", "18446744073709551616", "1e22"}


def test_a_comma_at_the_end_of_each_row_moves_nothing(loads: Loads) -> None:
    assert loads.case("trailing-comma-shift/recipients.csv").emails == {"1": "ann@one.example", "2": "bob@one.example"}


def test_a_value_too_many_rejects_the_row(loads: Loads) -> None:
    with pytest.raises(LoadFault, match="2 x too_many_values"):
        loads.case("trailing-comma-shift/rows-with-real-extra.csv")


@pytest.mark.parametrize(
    ("file", "broken", "taken"),
    [
        ("name-column.csv", 2, {"2": "b@two.example", "3": "c@three.example"}),
        ("json-column.csv", 2, {"2": "b@two.example", "3": "c@three.example"}),
        ("eof.csv", 3, {"1": "a@one.example", "3": "c@three.example"}),
    ],
)
def test_an_unclosed_quote_costs_its_own_row_and_nobody_elses(
    loads: Loads, file: str, broken: int, taken: dict[str, str]
) -> None:
    found = loads.case(f"unbalanced-quote-swallow/{file}")

    assert found.emails == taken
    assert found.lines == {broken: "unclosed_quote"}
    assert not any("@" in row.template_variables for row in found.people.values())


def test_a_quoted_value_over_several_lines_is_one_row(loads: Loads) -> None:
    found = loads.case("quoted-newline/recipients.csv")

    assert found.report.recipients == found.report.rows_read == 2
    assert found.variables == {"1": {"name": "Ann", "city": "Lyon"}, "2": {"name": "Bob"}}


@pytest.mark.parametrize(("file", "ids"), [("cr.csv", {"1001", "1002"}), ("mixed.csv", {"1", "2"})])
def test_any_line_end_ends_a_line(loads: Loads, file: str, ids: set[str]) -> None:
    found = loads.case(f"cr-only/{file}")

    assert set(found.people) == ids
    assert not any("\r" in value for row in found.people.values() for value in (row.email, row.template_variables))


@pytest.mark.parametrize("file", ["semicolon.csv", "tab.csv"])
def test_the_delimiter_is_found_out(loads: Loads, file: str) -> None:
    found = loads.case(f"semicolon/{file}")

    assert found.variables == {"1001": {"name": "Ann"}, "1002": {"name": "Bob"}}


def test_a_wrong_delimiter_is_refused_with_the_columns_that_are_there(loads: Loads) -> None:
    with pytest.raises(LoadFault, match="missing columns recipient_id, email; found 'recipient_id;email;locale;timez"):
        loads.case("semicolon/semicolon.csv", delimiter=",")


def test_another_encoding_is_refused_with_line_and_byte_until_it_is_named(loads: Loads) -> None:
    with pytest.raises(
        LoadFault, match=r"recipients\.csv, line 3: byte 138 \(0xeb\) is not UTF-8; .*--encoding cp1252"
    ):
        loads.case("cp1252/recipients.csv", campaign_id="spring")

    found = loads.case("cp1252/recipients.csv", campaign_id="spring", encoding="cp1252")

    assert found.variables["2"] == {"name": "Zo\u00eb"}


def test_one_mailbox_in_three_spellings_is_one_recipient_and_the_first_row_counts(loads: Loads) -> None:
    found = loads.case("dup-email-case/recipients.csv")

    assert set(found.people) == {"1", "4"}
    assert found.report.rows_duplicate == 2
    assert found.report.rows_rejected == 0
    assert [(row["line"], row["reason"], row["detail"]) for row in found.rejects] == [
        (3, "duplicate_address", "the same as in line 2, which counts"),
        (4, "duplicate_address", "the same as in line 2, which counts"),
    ]


def test_hidden_characters_are_trimmed_or_rejected_never_deleted(loads: Loads) -> None:
    found = loads.case("invisible-chars/recipients.csv")

    assert list(found.emails.values()) == [
        "zoe@one.example",
        "max@two.example",
        "ivy@three.example",
        "pat@four.example",
    ]
    assert found.lines == {6: "bad_address", 7: "bad_address"}


def test_json_values_keep_their_types(loads: Loads) -> None:
    found = loads.case("ndjson-coercion/recipients.ndjson")

    assert set(found.people) == {"007", "9007199254740993"}
    assert found.lines == {3: "missing_recipient_id"}
    assert found.variables["007"] == {"created_at": "2026-01-15", "modified": "1700000000", "zip": "01234"}


def test_a_bad_line_costs_one_row(loads: Loads) -> None:
    found = loads.case("ndjson-bad-line/recipients.ndjson")

    assert set(found.people) == {"1", "5"}
    assert found.lines == {3: "bad_json", 4: "not_an_object"}
    assert found.report.warnings == {"blank_rows": 1}


def test_parquet_values_keep_their_meaning(loads: Loads) -> None:
    found = loads.case("parquet-types/recipients.parquet")

    assert found.emails == {"9007199254740993": "a@one.example", "9007199254740992": "c@one.example"}
    assert found.lines == {2: "missing_recipient_id"}
    assert found.variables["9007199254740993"] == {
        "count": 1,
        "tags": ["x", "y"],
        "due": "2026-01-15T09:00:00Z",
        "price": "12.50",
        "extra": {"k": "v"},
    }


def test_a_blank_cell_is_no_variable_and_a_number_that_is_none_is_rejected(loads: Loads) -> None:
    flat = loads.case("nan-json/flat.csv")
    assert flat.variables == {"1": {"name": "Ann", "points": "10"}, "2": {"name": "Bob"}}

    found = loads.case("nan-json/recipients.ndjson")

    assert found.variables == {"1": {"points": 10}}
    assert found.lines == {2: "bad_template_variables", 3: "bad_template_variables"}


def test_variables_that_are_no_object_are_rejected_at_load(loads: Loads) -> None:
    found = loads.case("template-vars-bad-json/recipients.csv")

    assert found.variables == {"1": {"name": "Ann"}, "2": {}, "3": {}, "11": {"a": {"a": {"a": 1}}}}
    assert found.lines == dict.fromkeys((5, 6, 7, 8, 9, 10, 11), "bad_template_variables")
    assert {row["line"]: row["detail"] for row in found.rejects}[9] == "the same name twice in one object"


def test_a_domain_in_any_script_is_stored_as_it_goes_out(loads: Loads) -> None:
    found = loads.case("idn-domain/recipients.csv")

    assert found.emails == {
        "1": "info@xn--bcher-kva.example",
        "3": "info@xn--r8jz45g.example",
        "4": "info@one.example",
    }
    assert found.report.rows_duplicate == 1


def test_only_malformed_addresses_are_rejected(loads: Loads) -> None:
    found = loads.case("unusual-valid/recipients.csv")

    assert set(found.people) == {f"ok{number}" for number in range(7)}
    assert found.report.rejected_by_reason == {"bad_address": 16}


def test_an_address_outside_ascii_before_the_at_sign_is_kept_as_it_is(loads: Loads) -> None:
    assert loads.case("smtputf8-local/recipients.csv").emails == {"1": "jörg@one.example", "2": "anna@one.example"}


def test_an_address_with_a_line_break_is_rejected_and_its_neighbours_are_taken(loads: Loads) -> None:
    found = loads.case("crlf-injection/recipients.ndjson")

    assert set(found.people) == {"1", "2", "3", "4", "6"}
    assert found.lines == {5: "bad_address"}


def test_a_comma_in_a_name_is_part_of_the_name(loads: Loads) -> None:
    names = [value["display_name"] for value in loads.case("display-name-comma/recipients.csv").variables.values()]

    assert names == ["Doe, Jane", 'Ann "Ace" Lee', "Bob <bob@evil.example>", "Chloë; Café", "x@y.example"]


def test_unknown_zones_get_the_default_and_a_counted_warning(loads: Loads) -> None:
    found = loads.case("legacy-names/recipients.csv", default_timezone="Europe/Paris")

    wanted = json.loads((CASES / "legacy-names" / "zones.json").read_text())
    assert [found.people[str(number)].timezone for number in range(1, 14)] == [*wanted["accept"], *["Europe/Paris"] * 5]
    assert found.report.warnings == {"unknown_timezone": 5}


def test_strict_rejects_unknown_zones(loads: Loads) -> None:
    found = loads.case("legacy-names/recipients.csv", strict=True)

    assert found.report.recipients == 8
    assert found.report.rejected_by_reason == {"unknown_timezone": 5}
    assert found.report.warnings == {}


def test_offsets_become_zones(loads: Loads) -> None:
    found = loads.case("offset-strings/recipients.csv")

    zones = {number: row.timezone for number, row in found.people.items()}
    assert [zones[number] for number in "123456"] == ["Asia/Kolkata"] * 2 + ["Etc/GMT-2", "UTC", "UTC", "Etc/GMT+8"]
    assert found.report.warnings == {"unknown_timezone": 1}


def test_zone_names_are_taken_in_any_spelling(loads: Loads) -> None:
    found = loads.case("case-space/recipients.csv")

    zones = [found.people[number].timezone for number in "1234"]
    assert zones == ["America/New_York", "Europe/Paris", "America/New_York", "Asia/Tokyo"]


def test_an_over_long_id_rejects_its_row_and_the_others_are_stored(loads: Loads) -> None:
    found = loads.case("string-limits/recipients.csv")

    assert set(found.people) == {"\U0001f600" * 20, "3"}
    assert found.lines == {3: "recipient_id_too_long"}
