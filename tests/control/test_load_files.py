"""Files that are no list, or a list that is hard to read: a message with thing, place and mend, or the right rows."""

import csv
import io
import json
import os
import random
import re
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pyarrow as arrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from sendonce.control import csv_rows, raw_rows
from sendonce.control.load import LoadFault
from sendonce.control.raw_rows import FileOptions
from sendonce.control.recipients_file import RecipientsFile
from tests.control.lists import CASES, HEADER, Loads, campaign

ROW = b"1,ann@one.example,en,UTC,{}\n"


def read(path: Path, **options: object) -> tuple[list[raw_rows.RawRow], list[raw_rows.Reject]]:
    """All rows and rejects of a file."""
    file = RecipientsFile(path, FileOptions(**options))  # type: ignore[arg-type]
    chunks = list(file.chunks())
    file.close()
    return [row for chunk in chunks for row in chunk.rows], [one for chunk in chunks for one in chunk.rejects]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the recipients file is empty; export the list again"),
        (b"\n\r\n  \n", "holds only blank lines"),
        (HEADER, "holds column names and nobody"),
        (b"PK\x03\x04abc", "is a ZIP archive or an Excel workbook, not a list; export the sheet as CSV"),
        (b"\x1f\x8b\x08abc", "is compressed with gzip, not a list; unpack it"),
        (b"SQLite format 3\0abc", "is an SQLite database"),
        (bytes(range(256)) * 40, "holds NUL bytes: a binary file, or UTF-16 without a byte order mark"),
        (b"\x89PNG\r\n\x1a\nabc", r"line 1: byte 0 \(0x89\) is not UTF-8; if it is text, name its encoding"),
        ((HEADER + ROW).decode().encode("utf-16-le"), "holds NUL bytes: .*--encoding utf-16-le"),
        (HEADER + ROW + b"2,zo\xc3", "line 3: the file ends in the middle of a character"),
        (b"id,mail\n1,ann@one.example\n", "line 1: missing columns recipient_id, email; found 'id', 'mail'"),
        (b"1,ann@one.example\n2,b@one.example\n", "the first line holds an address instead of column names"),
        (b'recipient_id,"email\n1,a@one.example\n', "line 1: the column names are badly quoted"),
        (b"recipient_id,email,email\n1,a@one.example,\n", "column 'email' is there more than once; keep one"),
        (b"recipient_id," + b"x" * (1 << 20), "line 1: the line is longer than 1048576 characters"),
        (b"PAR1" + b"\0" * 40, "the Parquet file is damaged or cut off; export it again"),
    ],
)
def test_what_is_no_list_is_refused_with_place_and_mend(loads: Loads, content: bytes, words: str) -> None:
    with pytest.raises(LoadFault, match=words) as found:
        loads(content)

    assert str(loads.folder / "list.csv") in str(found.value)
    assert "ann@" not in str(found.value)
    assert campaign(loads.store, "c1") is None


def test_a_missing_file_a_folder_and_a_pipe_are_refused(loads: Loads, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    for path, words in (
        (tmp_path / "none.csv", "there is no such recipients file; check the path"),
        (tmp_path, "is a folder; name a CSV, NDJSON or Parquet file"),
        (pipe, "is not a regular file"),
        (tmp_path / "x\0y", "cannot be read"),
    ):
        with pytest.raises(LoadFault, match=words):
            loads(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encoding": "klingon"}, "unknown encoding 'klingon'; use a name such as utf-8 or cp1252"),
        ({"encoding": "rot13"}, "unknown encoding 'rot13'"),
        ({"format": "xml"}, "unknown format 'xml'; use one of csv, ndjson, parquet"),
        ({"delimiter": ";;"}, "a delimiter is one character, not ';;'"),
        ({"quote": "''"}, "a quote is one character, not \"''\""),
        (
            {"column_map": {"email": "E-Mail"}},
            "no column 'E-Mail', which is to be email; found 'recipient_id', 'email'",
        ),
        ({"batch_size": 0}, "a batch size of 0; give one from 1 to 5000"),
        ({"priority": "urgent"}, "unknown priority 'urgent'; use one of critical, high, bulk"),
        ({"default_locale": "klingon"}, "unknown default locale 'klingon'"),
        ({"default_timezone": "Mars"}, "unknown default time zone 'Mars'"),
        ({"from_address": "Shop\r\nBcc: x@one.example"}, "the address to send from is no address"),
        ({"from_address": "Shop <news>"}, "the address to send from is no address"),
        ({"from_address": "x@y.example, z@y.example"}, "the address to send from is no address .is more than one"),
        (
            {"from_address": "j\u00f6rg@shop.example"},
            "the address to send from is no address .has letters beyond ASCII",
        ),
        ({"campaign_id": "a/b"}, "'a/b' is no campaign id; a campaign id has 1 to 100 letters"),
    ],
)
def test_an_option_that_cannot_be_is_refused(loads: Loads, options: dict[str, object], words: str) -> None:
    with pytest.raises(LoadFault, match=words):
        loads(HEADER + ROW, **options)  # type: ignore[arg-type]


def test_a_file_that_changes_while_it_is_read_is_refused(loads: Loads, tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(HEADER + ROW)
    file = RecipientsFile(path, FileOptions())
    path.write_bytes(HEADER + ROW + b"2,bob@one.example,en,UTC,{}\n")

    with pytest.raises(LoadFault, match="the file changed while it was read"):
        list(file.chunks())
    file.close()


def test_a_file_of_which_no_row_can_be_taken_makes_no_campaign_and_keeps_the_reasons(loads: Loads) -> None:
    with pytest.raises(LoadFault, match=r"none of its 2 rows can be taken \(1 x bad_address, 1 x missing_email\)"):
        loads(b"recipient_id,email\n1,ann\n2,\n")

    assert campaign(loads.store, "c1") is None
    kept = (loads.folder / "rejects" / "c1.ndjson").read_text().splitlines()
    assert [json.loads(line)["line"] for line in kept] == [2, 3]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_every_encoding_with_a_mark_and_every_line_end_is_read_alike(tmp_path: Path, encoding: str, end: str) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(
        end.join(["recipient_id,email,name", "1,a@one.example,Zoë", "2,b@one.example,佐藤"]).encode(encoding)
    )

    rows, rejects = read(path)

    assert rejects == []
    assert [(row[0], row[1], row[6]) for row in rows] == [(2, "1", {"name": "Zoë"}), (3, "2", {"name": "佐藤"})]


def test_utf_16_without_a_mark_is_read_when_it_is_named(tmp_path: Path) -> None:
    path = tmp_path / "list.ndjson"
    path.write_bytes('{"recipient_id":"1","email":"a@one.example","name":"Zoë"}'.encode("utf-16-le"))

    rows, _ = read(path, encoding="utf-16-le", format="ndjson")

    assert rows[0][6] == {"name": "Zoë"}


@pytest.mark.parametrize("line", [1, 7, 30_000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_an_undecodable_byte_is_found_with_its_line_and_offset(tmp_path: Path, line: int, end: bytes) -> None:
    lines = [b"recipient_id,email,name", *(b"%d,a%d@one.example,Zo\xc3\xab" % (n, n) for n in range(2, 30_002))]
    lines[line - 1] += b"\xeb!"
    content = end.join(lines)
    path = tmp_path / "list.csv"
    path.write_bytes(content)

    place = content.index(b"\xeb!")
    with pytest.raises(LoadFault, match=rf"line {line}: byte {place} \(0xeb\) is not UTF-8"):
        read(path)


def test_an_endless_line_costs_one_row_and_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    with open(path, "wb") as handle:
        handle.write(b"recipient_id,email,name\n1,a@one.example,Ann\n2,b@one.example,")
        for _ in range(24):
            handle.write(b"x" * (1 << 20))
        handle.write(b"\n3,c@one.example,Cy\n")

    rows, rejects = read(path)

    assert [(row[0], row[1]) for row in rows] == [(2, "1"), (4, "3")]
    assert rejects == [raw_rows.Reject(3, "", "line_too_long", "more than 1048576 characters")]


def test_a_quote_that_is_never_closed_in_a_long_file_costs_one_row(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    people = [b"%d,a%d@one.example,Ann" % (n, n) for n in range(2, 80_002)]
    people[3] = b'5,a5@one.example,"Ann'
    path.write_bytes(b"\n".join([b"recipient_id,email,name", *people]))

    rows, rejects = read(path)

    assert len(rows) == 79_999
    assert [(one.line, one.reason) for one in rejects] == [(5, "unclosed_quote")]


def test_many_open_quotes_do_not_take_quadratic_time(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(b"recipient_id,email,name\n" + b'1,a@one.example,"Ann ""x""\n' * 20_000)

    rows, rejects = read(path)

    assert rows == []
    assert len(rejects) == 20_000


@pytest.mark.parametrize(
    "swallowed",
    [
        b'1,a@one.example,"Ann,M\n2,b@one.example,5",M\n',
        b'1,a@one.example,"Ann\n2,b@one.example,Bob,M\n3,c@one.example,",M\n',
        b'1,a@one.example,"Ann\n 2 , b@one.example,Bob,M\n",M\n',
    ],
)
def test_a_row_inside_a_quoted_value_refuses_the_file(loads: Loads, swallowed: bytes) -> None:
    """A stray quote further down closes the value as if it were meant: only what stands inside tells."""
    with pytest.raises(LoadFault, match=r"line 3: the quote opened in line 3 swallows line 4.*close the quote"):
        loads(b"recipient_id,email,name,size\n0,z@one.example,Zoe,S\n" + swallowed)
    assert campaign(loads.store, "c1") is None


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("recipient_id,email,name", '1,ann@one.example,"Ann\n2,bob@two.example.,Bob"\n'),  # an address with a fault
        ("recipient_id,email,name", '1,ann@one.example,"Ann\n2,<bob@two.example>,Bob"\n'),
        ("recipient_id,email,name", '1,ann@one.example,"Ann\n2,b\u00f6b@localhost,Bob"\n'),
        ("recipient_id,email,name", '1,ann@one.example,"Ann\n2,bob@two.example"\n'),  # a row with a value too few
        ("recipient_id,email,name", '1,ann@one.example,"Ann\n,bob@two.example,Bob"\n'),  # and one without an id
        ("recipient_id,email,name", '1,ann@one.example,"Ann\n2,,Bob"\n'),  # and one without an address
        ("recipient_id,email,name", '1,ann@one.example,"Ann\r2,bob@two.example.,Bob"\r'),
        ("recipient_id;email;name", '1;ann@one.example;"Ann\n2;bob@two.example.;Bob"\n'),
        ("recipient_id,email,name", '1,"ann@one.example,Ann\n2,bob@two.example",Bob\n'),
        ("recipient_id,name,email", '1,"Ann,ann@one.example\n2,Bob",bob@two.example\n'),  # Bob's address, Ann's id
        ("name,recipient_id,email", '"Ann,1,ann@one.example\nBob",2,bob@two.example\n'),
        ("email,recipient_id,name", 'ann@one.example,1,"Ann\nbob@two.example.,2,Bob"\n'),
        ("recipient_id,email,name,city", '1,ann@one.example,"Ann\n2,bob@two.example.,Bob",Rome\n'),
        ("recipient_id,email,name,city", '1,ann@one.example,"Ann\nLee","Rome\n2,bob@two.example.,Bob,Pau"\n'),
        ("recipient_id,email,name,city", '1,ann@one.example,"Ann\n2,"""",bob@two.example.,Pau",Rome\n'),
    ],
)
def test_no_neighbour_hides_in_a_quoted_value(loads: Loads, header: str, rows: str) -> None:
    """Whatever is wrong with the neighbour's row: nobody may vanish, or come to stand in another's letter."""
    with pytest.raises(LoadFault, match=r"line 3: the quote opened in line 3 swallows"):
        loads(f"{header}\n0{',' if ',' in header else ';'}z\n{rows}9,zoe@one.example,Zoe\n".encode())
    assert campaign(loads.store, "c1") is None


@pytest.mark.parametrize(
    ("header", "rows"),
    [
        ("recipient_id,email,name", '1,ann@one.example,"12 Rue X, 3rd floor\n69001 Lyon, Rh\u00f4ne, France"\n'),
        ("recipient_id,email,name", '1,ann@one.example,"Write to:\nhelp@shop.example"\n'),
        ("recipient_id,name,email", '1,"Ann\nLee",ann@one.example\n'),
        ("name,email,recipient_id,city", '"Ann\nLee",ann@one.example,1,"Rome\nLazio"\n'),
        (
            "recipient_id,email,name",
            '1,ann@one.example,"{\n ""a"": 1, ""mail"": ""x@y.example"", ""b"": [""p@q.example""]}"\n',
        ),
    ],
)
def test_a_value_that_rightly_spans_lines_is_taken(loads: Loads, header: str, rows: str) -> None:
    found = loads(f"{header}\n{rows}".encode())

    assert found.emails == {"1": "ann@one.example"}
    assert found.rejects == []


def test_a_list_of_people_inside_json_is_no_swallowed_row(loads: Loads) -> None:
    value = b'{""friends"": [\n""x"",\n""1, b@one.example, en""\n]}'

    found = loads(b'recipient_id,email,template_variables\n1,a@one.example,"' + value + b'"\n')

    assert found.variables == {"1": {"friends": ["x", "1, b@one.example, en"]}}


def test_quotes_inside_a_value_without_quotes_are_text(tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(
        b'recipient_id,email,name\n1,a@one.example,Ann "Ace" Lee\n2,b@one.example,5"\n3,c@one.example,"x"y\n'
    )

    rows, rejects = read(path)

    assert [row[6]["name"] for row in rows] == ['Ann "Ace" Lee', '5"']
    assert [(one.line, one.reason) for one in rejects] == [(4, "bad_quoting")]


def test_rows_of_another_width_are_rejected_and_empty_ones_are_nothing(loads: Loads) -> None:
    found = loads(
        b"recipient_id,email,name,,\n1,a@one.example\n2,b@one.example,Bob,\n,,,,\n\n  \n3,c@one.example,Cy,,x\n"
        b"4,d@one.example,Di,,\n5,e@one.example,Ed\n6,f@one.exa"
    )

    assert set(found.people) == {"2", "4", "5"}
    assert found.lines == {2: "too_few_values", 7: "too_many_values", 10: "too_few_values"}
    assert found.report.warnings == {"blank_rows": 3}
    assert found.report.rows_read == 6


def test_control_characters_and_lost_characters_reject_their_row(loads: Loads) -> None:
    found = loads(
        b"name,email,recipient_id\nAnn,a@one.example,1\x00\nZo\xef\xbf\xbd,b@one.example,2\n"
        b'Cy,c@one.example,"3\n4"\nDi,d@one.example,5\nEd,e@one.example,\xe2\x80\xa96\n'
    )

    assert set(found.people) == {"5"}
    assert found.lines == {2: "control_character", 3: "damaged_text", 4: "bad_recipient_id", 7: "bad_recipient_id"}


def test_columns_are_mapped_and_the_rest_are_variables(loads: Loads) -> None:
    mapped = {"recipient_id": "Customer No", "email": "e-mail", "first_name": "first-name", "timezone": "tz"}

    found = loads(
        b"Customer No;E-Mail;first-name;TZ;Town;Email\n007;a@one.example;Ann;Europe/Paris;Lyon;no\n", column_map=mapped
    )

    person = found.people["007"]
    assert (person.email, person.timezone) == ("a@one.example", "Europe/Paris")
    assert found.variables["007"] == {"first_name": "Ann", "Town": "Lyon", "Email": "no"}


def test_an_address_can_be_the_id_as_well(loads: Loads) -> None:
    found = loads(b"mail,name\nAnn@one.example,Ann\n", column_map={"recipient_id": "mail", "email": "mail"})

    assert found.emails == {"Ann@one.example": "Ann@one.example"}


def test_a_mapped_name_that_no_object_has_is_refused(loads: Loads) -> None:
    with pytest.raises(LoadFault, match="no object has 'E-Mail', which the map names; found 'recipient_id', 'mail'"):
        loads(b'{"recipient_id":"1","mail":"a@one.example"}\n', name="list.ndjson", column_map={"email": "E-Mail"})


def test_variables_of_both_kinds_come_together_and_the_object_wins(loads: Loads) -> None:
    found = loads(b'recipient_id,email,template_variables,name,town\n1,a@one.example,"{""name"":""Ann""}",Bob,Lyon\n')

    assert found.variables == {"1": {"name": "Ann", "town": "Lyon"}}


def test_other_quoting_is_found_out_or_given(loads: Loads) -> None:
    single = b"'recipient_id','email','name'\n'1','a@one.example','Ann, ''Ace'''\n"
    assert loads(single).variables == {"1": {"name": "Ann, 'Ace'"}}

    none = b'recipient_id|email|name\n1|a@one.example|"Ann\n2|b@one.example|5" disk\n'
    assert loads(none, quote="").variables == {"1": {"name": '"Ann'}, "2": {"name": '5" disk'}}


def test_whole_numbers_in_json_keep_every_digit(loads: Loads) -> None:
    found = loads(
        b'{"recipient_id":12345678901234567890123,"email":"a@one.example","n":-18446744073709551617,"x":2.5}\n'
        b'{"recipient_id":7.0,"email":"b@one.example"}\n{"recipient_id":true,"email":"c@one.example"}\n'
        b'{"recipient_id":"d","email":["d@one.example"]}\n{"recipient_id":"e","email":"e@one.example","locale":5}\n',
        name="list.jsonl",
    )

    assert found.variables == {"12345678901234567890123": {"n": -18446744073709551617, "x": 2.5}, "e": {}}
    assert found.lines == {2: "bad_recipient_id", 3: "bad_recipient_id", 4: "bad_address"}
    assert found.report.warnings == {"unknown_locale": 1}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"recipient_id":"1","email":"a@one.example","email":"b@one.example"}', "bad_json"),
        (b'{"recipient_id":"1","email":"a@one.example","x":{"a":1,"a":1}}', "bad_json"),
        (b'{"recipient_id":"1","email":"a@one.example","x":"\\ud83d"}', "bad_json"),
        (b'{"recipient_id":"1","email":"a@one.example"} {}', "bad_json"),
        (b'{"recipient_id":"1","email":"a@one.example","x":' + b"[" * 3000 + b"]" * 3000 + b"}", "bad_json"),
        (b'{"recipient_id":"1","email":"a@one.example","x":' + b"9" * 5000 + b"}", "bad_json"),
        (
            b'{"recipient_id":"1","email":"a@one.example","template_variables":"{\\"a\\":1,\\"a\\":2}"}',
            "bad_template_variables",
        ),
        (b'{"recipient_id":"1","email":"a@one.example","template_variables":[1]}', "bad_template_variables"),
        (b'{"recipient_id":"\\u0000","email":"a@one.example"}', "bad_recipient_id"),
        (b'{"email":"a@one.example"}', "missing_recipient_id"),
        (b'{"recipient_id":"1"}', "missing_email"),
        (b"5", "not_an_object"),
    ],
)
def test_json_that_is_ambiguous_or_cannot_be_stored_is_rejected(loads: Loads, line: bytes, reason: str) -> None:
    found = loads(line + b'\n{"recipient_id":"2","email":"b@one.example"}\n', name="list.ndjson")

    assert set(found.people) == {"2"}
    assert found.lines == {1: reason}


def test_a_json_text_as_variables_is_read(loads: Loads) -> None:
    found = loads(b'{"recipient_id":"1","email":"a@one.example","template_variables":"{\\"a\\":[1]}"}', name="x.ndjson")

    assert found.variables == {"1": {"a": [1]}}


def test_odd_parquet_values_reject_their_row(loads: Loads, tmp_path: Path) -> None:
    path = tmp_path / "list.parquet"
    table = arrow.table(
        {
            "Recipient_ID": ["1", "2", "3", None, "5"],
            "mail": arrow.array([b"a@one.example", b"\xff", b"c@one.example", None, b"e@one.example"]),
            "score": [float("nan"), 1.0, float("inf"), None, 2.0],
            "price": [Decimal("1.10"), None, None, None, None],
        }
    )
    parquet.write_table(table, path)

    found = loads(path, column_map={"email": "mail"})

    assert found.variables == {"1": {"score": None, "price": "1.10"}, "5": {"score": 2.0, "price": None}}
    assert {row["line"]: (row["column"], row["reason"]) for row in found.rejects} == {
        2: ("mail", "bad_value"),
        3: ("score", "bad_value"),
    }
    assert found.report.warnings == {"blank_rows": 1}


def test_a_cut_off_parquet_file_is_refused(loads: Loads) -> None:
    whole = (CASES / "parquet-types" / "recipients.parquet").read_bytes()

    with pytest.raises(LoadFault, match="damaged or cut off"):
        loads(whole[:-200], name="list.parquet")


VALUE = st.text(
    st.one_of(
        st.sampled_from("\"',;|\n\r\t a@é\u2028\x85"), st.characters(codec="utf-8", exclude_characters="\0\ufffd")
    ),
    max_size=8,
)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    people=st.lists(st.tuples(VALUE, VALUE), min_size=1, max_size=8),
    delimiter=st.sampled_from(",;|\t"),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
)
def test_whatever_a_csv_writer_writes_is_read_back_with_its_lines(
    tmp_path: Path, people: list[tuple[str, str]], delimiter: str, quoting: int, end: str
) -> None:
    if {"\r", "\n"} & set("".join(map("".join, people))):
        quoting = csv.QUOTE_ALL  # Python's minimal quoting knows no line end but its own
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end)  # type: ignore[arg-type]
    writer.writerow(["recipient_id", "email", "one", "two"])
    starts = []
    for number, (one, two) in enumerate(people):
        written = text.getvalue()
        starts.append(1 + written.count("\n") + written.count("\r") - written.count("\r\n"))
        writer.writerow([f"id{number}", f"a{number}@one.example", one, two])
    path = tmp_path / "list.csv"
    path.write_bytes(text.getvalue().encode())

    rows, rejects = read(path)

    assert rejects == []
    assert [(row[0], row[1], row[2]) for row in rows] == [
        (start, f"id{number}", f"a{number}@one.example") for number, start in enumerate(starts)
    ]
    assert [row[6] for row in rows] == [
        {name: value for name, value in (("one", one), ("two", two)) if value} for one, two in people
    ]


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text('"a@x.é,\n1{}: ', max_size=14), max_size=12))
def test_any_text_ends_in_rows_of_the_right_width_or_in_rejects_that_cover_every_line(
    tmp_path: Path, pieces: list[str]
) -> None:
    """Nothing vanishes: each line with something in it belongs to a row, to a reject, or to a refused file."""
    path = tmp_path / "list.csv"
    body = "\n".join(pieces)
    path.write_text("recipient_id,email,name\n" + body, encoding="utf-8", newline="")

    try:
        rows, rejects = read(path)
    except LoadFault:
        return  # a swallowed row: nothing is taken at all

    lines = body.split("\n")
    starts = sorted([row[0] for row in rows] + [one.line for one in rejects])
    assert len(set(starts)) == len(starts)
    over_lines = {
        line
        for one in rejects
        for line in range(one.line + 1, 1 + int("".join(re.findall(r"up to line (\d+)", one.detail)) or one.line))
    }
    over_lines |= {
        row[0] + offset
        for row in rows
        for offset in range(1, 1 + "".join([*map(str, row[1:3]), *row[6].values()]).count("\n"))
    }
    for number, line in enumerate(lines, 2):
        assert number in starts or number in over_lines or not line.strip('", \t')


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_chunks_end_anywhere_without_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, shuffled: Callable[[list[bytes]], bytes]
) -> None:
    path = tmp_path / "list.csv"
    lines = [b"%d,a%d@one.example,Ann" % (n, n) for n in range(20)]
    odd = [b'x,x@one.example,"two\nlines"', b'y,y@one.example,"open', b"short", b"", b'z,z@one.example,"a ""b"""']
    path.write_bytes(b"recipient_id,email,name\n" + shuffled([*lines, *odd]))
    whole = read(path)

    monkeypatch.setattr(csv_rows, "CHUNK_ROWS", size)

    assert read(path) == whole


@pytest.fixture
def shuffled() -> Callable[[list[bytes]], bytes]:
    def join(lines: list[bytes]) -> bytes:
        random.Random(3).shuffle(lines)
        return b"\n".join(lines)

    return join
