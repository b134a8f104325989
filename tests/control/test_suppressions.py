import json
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from schemas.ids import address_key
from schemas.outcomes import Outcome
from schemas.tables import Recipient, Suppression
from sendonce.control import suppressions
from sendonce.control.campaigns import get_campaign
from sendonce.control.load_faults import LoadFault
from sendonce.control.suppression_import import ImportReport, import_suppressions
from sendonce.control.suppressions import BadSuppression, lists_of, reason_named, suppressed, suppressed_since
from sendonce.stores.base import Store
from sendonce.stores.opening import store_key
from tests.control.lists import CASES, Loads, recipients
from tests.control.made import Clock, seal


def rows(store: Store) -> list[Suppression]:
    return store.read(lambda reader: reader.scan(Suppression))


def keyed(store: Store, *addresses: str) -> list[str]:
    return sorted(address_key(store_key(store), address) for address in addresses)


def take(store: Store, folder: Path, content: bytes, name: str = "list.csv", **options: str) -> ImportReport:
    path = folder / name
    path.write_bytes(content)
    return import_suppressions(store, path, by="ann", **options)  # type: ignore[arg-type]


def test_the_first_reason_stays_and_adding_again_changes_nothing(store: Store, clock: Clock) -> None:
    assert suppressions.add(store, "Ann@One.example", reason="complained", by="ann", note="by phone")
    (first,) = rows(store)
    clock.at += timedelta(hours=1)
    assert not suppressions.add(store, "ann@ONE.EXAMPLE", reason="manual", by="bob")

    assert rows(store) == [first]
    assert (first.address_key, first.list_name) == (*keyed(store, "ann@one.example"), "*")
    assert (first.created_by, first.source, first.note) == ("ann", "command", "by phone")
    assert suppressions.reason_of(first) == "complained"


def test_the_time_is_the_store_s_own(store: Store, clock: Clock) -> None:
    suppressions.add(store, "ann@one.example", by="ann")
    (row,) = rows(store)
    assert abs(row.created_at - clock.at) < timedelta(seconds=1)
    assert row.created_at.utcoffset() == timedelta(0)


def test_a_list_of_its_own_is_apart_from_all_letters(store: Store) -> None:
    suppressions.add(store, "ann@one.example", list_name="offers", by="ann")
    suppressions.add(store, "ann@one.example", by="ann")

    assert [row.list_name for row in suppressions.why(store, "ann@one.example")] == ["*", "offers"]
    removed = suppressions.remove(store, "ann@one.example")
    assert removed is not None
    assert [row.list_name for row in suppressions.why(store, "ann@one.example")] == ["offers"]
    assert suppressions.remove(store, "ann@one.example") is None
    assert suppressions.why(store, "bob@one.example") == []


@pytest.mark.parametrize("address", ["", "ann", "ann@", "Ann <ann@one.example>", "ann@one.example, bob@one.example"])
def test_what_is_no_address_is_refused_and_not_repeated(store: Store, address: str) -> None:
    with pytest.raises(BadSuppression) as fault:
        suppressions.add(store, address, by="ann")
    assert "one.example" not in str(fault.value)
    assert rows(store) == []


@pytest.mark.parametrize("name", ["", "a b", "-x", "x" * 65, "**", "å"])
def test_what_is_no_list_is_refused(store: Store, name: str) -> None:
    with pytest.raises(BadSuppression):
        suppressions.add(store, "ann@one.example", list_name=name, by="ann")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("unsubscribed", "unsubscribed"),
        ("Unsubscribe", "unsubscribed"),
        ("hard_bounce", "bounced"),
        ("Hard Bounce", "bounced"),
        ("spam-report", "complained"),
        ("erased", "erased"),
        ("550 5.1.1 no such user", None),
        ("", None),
    ],
)
def test_reasons_are_understood_as_other_programs_write_them(text: str, reason: str | None) -> None:
    assert reason_named(text) == reason


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("plain.txt", b"ann@one.example\nBOB@one.example\n\nnot an address\nann@one.example\n"),
        ("crlf.txt", b"\xef\xbb\xbfann@one.example\r\nBOB@one.example\r\nnot an address\r\nann@one.example"),
        ("utf16.txt", "ann@one.example\nBOB@one.example\nnot an address\nann@one.example".encode("utf-16")),
        ("list.csv", b"Name,Email\nAnn,ann@one.example\nBob,BOB@one.example\nX,not an address\nAnn,ann@one.example\n"),
        ("semi.csv", b"email;name\nann@one.example;A\nBOB@one.example;B\nnot an address;C\nann@one.example;A\n"),
        (
            "list.ndjson",
            b'{"email":"ann@one.example"}\n{"email":"BOB@one.example"}\n{"email":7}\n{"email":"ann@one.example"}\n',
        ),
    ],
)
def test_files_of_any_make_are_taken_once(store: Store, tmp_path: Path, name: str, content: bytes) -> None:
    first = take(store, tmp_path, content, name)
    again = take(store, tmp_path, content, name)

    assert (first.rows_read, first.added, first.already, first.rejected) == (4, 2, 1, 1)
    assert (again.rows_read, again.added, again.already, again.rejected) == (4, 0, 3, 1)
    assert sorted(row.address_key for row in rows(store)) == keyed(store, "ann@one.example", "bob@one.example")
    assert {row.source for row in rows(store)} == {"import"}


def test_a_row_s_own_reason_goes_before_that_of_the_import(store: Store, tmp_path: Path) -> None:
    content = b"email,Reason\na@one.example,hard_bounce\nb@one.example,\nc@one.example,550 no such user\n"
    report = take(store, tmp_path, content, reason="unsubscribed")

    reasons = {row.address_key: suppressions.reason_of(row) for row in rows(store)}
    key = store_key(store)
    found = [reasons[address_key(key, f"{name}@one.example")] for name in "abc"]
    assert found == ["bounced", "unsubscribed", "unsubscribed"]
    assert report.unknown_reasons == 1


def test_plain_lines_may_carry_a_reason(store: Store, tmp_path: Path) -> None:
    take(store, tmp_path, b"a@one.example,complaint\nb@one.example\n", "list.txt")
    assert sorted(map(suppressions.reason_of, rows(store))) == ["complained", "manual"]


def test_rejects_are_counted_by_reason_and_line_without_their_values(store: Store, tmp_path: Path) -> None:
    content = b"email,name\nsecret at one.example,A\n,B\nann@one.example,C\nx,y,z\n"
    report = take(store, tmp_path, content)

    assert dict(report.rejected_by_reason) == {"bad_address": 1, "missing_address": 1, "too_many_values": 1}
    assert sorted(report.lines) == [2, 3, 5]
    assert "secret" not in repr(report)


def test_a_file_without_an_address_is_refused_with_the_mend(store: Store, tmp_path: Path) -> None:
    with pytest.raises(LoadFault, match=r"none of its 2 rows holds an address.*--column"):
        take(store, tmp_path, b"mail\nno\n")
    with pytest.raises(LoadFault, match="no column 'post'"):
        take(store, tmp_path, b"email\nann@one.example\n", column="post")
    with pytest.raises(LoadFault, match="no such"):
        import_suppressions(store, tmp_path / "nowhere.csv", by="ann")
    assert rows(store) == []


def test_the_column_of_addresses_may_be_named(store: Store, tmp_path: Path) -> None:
    report = take(store, tmp_path, b"E-Post,id\nann@one.example,7\n", column="E-Post")
    assert report.added == 1


def test_two_imports_at_once_add_everybody_once(store: Store, tmp_path: Path) -> None:
    content = "".join(f"u{number}@one.example\n" for number in range(3000)).encode()
    (tmp_path / "list.txt").write_bytes(content)
    reports: list[ImportReport] = []

    def run() -> None:
        reports.append(import_suppressions(store, tmp_path / "list.txt", by="ann"))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sum(report.added for report in reports) == 3000 == len(rows(store))
    assert sum(report.added + report.already for report in reports) == 6000


def test_the_summary_counts_by_list_and_reason(store: Store) -> None:
    for number in range(3):
        suppressions.add(store, f"u{number}@one.example", reason="bounced", by="ann")
    suppressions.add(store, "u1@one.example", list_name="offers", by="ann")

    assert suppressions.summary(store) == [("*", "bounced", 3), ("offers", "manual", 1)]
    assert [row.list_name for row in suppressions.newest(store, 2)] == ["offers", "*"]


@pytest.mark.parametrize(
    ("options", "lists"), [({}, ("*",)), ({"list": ""}, ("*",)), ({"list": "offers"}, ("*", "offers"))]
)
def test_a_campaign_obeys_all_letters_and_its_own_list(options: dict[str, str], lists: tuple[str, ...]) -> None:
    assert lists_of(options) == lists


def test_the_list_of_a_load_stands_with_the_campaign(loads: Loads, store: Store) -> None:
    header = b"recipient_id,email\n1,ann@one.example\n"
    loads(header, campaign_id="spring", list_name="offers")
    assert json.loads(get_campaign(store, "spring").options)["list"] == "offers"
    with pytest.raises(LoadFault, match=r"other options \(list\)"):
        loads(header, campaign_id="spring")


def people(store: Store) -> list[Recipient]:
    return recipients(store, "spring")


@pytest.mark.parametrize("crowd", [0, 700], ids=["few", "after an import"])
def test_who_was_suppressed_since_a_time_is_found(store: Store, clock: Clock, crowd: int) -> None:
    seal(store, "spring", [5])
    suppressions.add(store, "u1@one.example", by="ann")
    since = clock.at + timedelta(minutes=5)
    clock.at += timedelta(minutes=10)
    suppressions.add(store, "u2@one.example", reason="bounced", by="ann")
    suppressions.add(store, "u3@one.example", list_name="offers", by="ann")
    store.write_many(
        Suppression(f"{number:032x}", "*", int(Outcome.SUPPRESSED_MANUAL), clock.at, "x", "import")
        for number in range(crowd)
    )

    everybody = people(store)

    def found(*lists: str) -> dict[int, Outcome]:
        look = store.read(lambda reader: suppressed_since(reader, lambda: everybody, lists, since))
        return {ordinal: outcome for ordinal, outcome in look.items() if ordinal != 0}

    assert found("*") == {1: Outcome.SUPPRESSED_BOUNCED}
    assert found("*", "offers") == {1: Outcome.SUPPRESSED_BOUNCED, 2: Outcome.SUPPRESSED_MANUAL}


def test_where_both_lists_hold_somebody_all_letters_says_why(store: Store) -> None:
    seal(store, "spring", [1])
    suppressions.add(store, "u1@one.example", reason="manual", list_name="A", by="ann")
    suppressions.add(store, "u1@one.example", reason="complained", by="ann")
    everybody = people(store)
    for lists in (("*", "A"), ("A", "*")):
        found = store.read(lambda reader, lists=lists: suppressed(reader, everybody, lists))
        assert found == {0: Outcome.SUPPRESSED_COMPLAINED}


def test_case_unsubscribed_while_paused_imports_in_any_letter_case(store: Store, loads: Loads) -> None:
    loads.case("unsubscribed-while-paused/recipients.csv", campaign_id="spring")
    import_suppressions(store, CASES / "unsubscribed-while-paused/suppressions.jsonl", by="ann")

    everybody = people(store)
    found = store.read(lambda reader: suppressed(reader, everybody, ("*",)))
    by_id = {person.recipient_id: found.get(person.ordinal) for person in everybody}
    assert {name: outcome for name, outcome in by_id.items() if outcome} == {
        "6": Outcome.SUPPRESSED_UNSUBSCRIBED,
        "8": Outcome.SUPPRESSED_BOUNCED,
    }
