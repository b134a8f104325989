import json
from email import message_from_bytes, policy
from pathlib import Path

import pytest

from schemas.tables import TemplateContent
from sendonce.stores.base import Store
from tests.cli.conftest import Call
from tests.control.made import campaign_row

HEADER = "recipient_id,email,locale,timezone,name,order\n"
ROWS = [
    "r1,ann@one.example,en,UTC,Ann,A-1\n",
    "r2,bob@two.example,fr,Europe/Paris,Bob,B-2\n",
    "r3,cy@three.example,en,UTC,Cy,\n",
    "r4,not-an-address,en,UTC,Dee,D-4\n",
    "r5,ANN@one.example,en,UTC,Ann,A-5\n",
]
MANIFEST = """\
priority: high
from: "Shop <news@shop.example>"
reply_to: help@shop.example
variables: {name: text, order: {type: text, example: X-1}}
locales: [en]
"""


@pytest.fixture
def order(folder: Path) -> Path:
    """A template that needs `order`, which one row of the list lacks."""
    path = folder / "templates/order"
    path.mkdir(parents=True)
    (path / "template.yaml").write_text(MANIFEST)
    (path / "subject.j2").write_text("Order {{ vars['order'] }}")
    (path / "body.txt.j2").write_text("Dear {{ name }}, your order {{ vars['order'] }} is on its way.\n")
    (path / "body.html.j2").write_text("<p>Dear {{ name }}, your order {{ vars['order'] }} is on its way.</p>\n")
    return path


@pytest.fixture
def people(folder: Path) -> str:
    (folder / "people.csv").write_text(HEADER + "".join(ROWS))
    return "people.csv"


@pytest.fixture
def loaded(sendonce: Call, store: Store, order: Path, people: str) -> str:
    assert sendonce("load", "spring", people, "--template", "order").code == 0
    return "spring"


def test_rejects_lie_beside_the_store_wherever_load_is_called(
    sendonce: Call, store: Store, order: Path, people: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)

    answer = sendonce("load", "spring", f"../{people}", "-t", "order", "--config", "../sendonce.yaml", "--json")

    assert answer.code == 0
    assert Path(answer.json["rejects_file"]).resolve() == (folder / ".sendonce/rejects/spring.ndjson").resolve()
    assert list(elsewhere.iterdir()) == []


def test_load_seals_and_counts_and_the_same_again_changes_nothing(
    sendonce: Call, store: Store, order: Path, people: str, folder: Path
) -> None:
    first = sendonce("load", "spring", people, "-t", "order", "--json")
    again = sendonce("load", "spring", people, "-t", "order")

    assert (first.code, again.code) == (0, 0)
    counted = {name: first.json[name] for name in ("rows_read", "recipients", "rows_rejected", "rows_duplicate")}
    assert counted == {"rows_read": 5, "recipients": 3, "rows_rejected": 1, "rows_duplicate": 1}
    assert "spring was loaded from this file before; nothing changed" in again.out
    assert again.widest <= 80
    said = first.out + again.out + (folder / ".sendonce/rejects/spring.ndjson").read_text()
    assert "one.example" not in said
    assert "not-an-address" not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-t", "ordre"], "template ordre: no such template; name one of newsletter, order, otp, receipt"),
        (["-t", "order", "--column", "email"], "--column 'email' is not OURS=THEIRS"),
        (["-t", "order", "--column", "email=a", "--column", "email=b"], "--column names email twice"),
        (["-t", "order", "--column", "email=E-Mail"], "E-Mail"),
    ],
)
def test_a_load_that_cannot_be_meant_exits_with_2(
    sendonce: Call, store: Store, order: Path, people: str, arguments: list[str], said: str
) -> None:
    answer = sendonce("load", "spring", people, *arguments)

    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert sendonce("list", "--json").json == []


def test_a_missing_file_is_named(sendonce: Call, store: Store, order: Path) -> None:
    answer = sendonce("load", "spring", "nowhere.csv", "-t", "order")

    assert answer.code == 2
    assert "nowhere.csv" in answer.err


def test_a_bulk_campaign_needs_unsubscribe_links(sendonce: Call, store: Store, people: str, folder: Path) -> None:
    (folder / "sendonce.yaml").write_text('from: "Shop <news@shop.example>"')

    answer = sendonce("load", "spring", people, "-t", "newsletter")

    assert answer.code == 2
    assert "needs unsubscribe links; set `unsubscribe: {base_url: https://" in answer.err


def test_rehearse_names_each_recipient_who_would_get_no_letter(sendonce: Call, loaded: str) -> None:
    found = sendonce("rehearse", loaded, "--json")
    shown = sendonce("rehearse", loaded)

    assert (found.code, shown.code) == (1, 1)
    assert [failure["recipient_id"] for failure in found.json["failures"]] == ["r3"]
    assert found.json["failures"][0]["reason"].startswith("render.")
    assert (found.json["rendered"], found.json["failed"], found.json["packed"] + found.json["whole"]) == (2, 1, 2)
    assert found.json["bytes"] > found.json["largest_bytes"] > 0
    assert shown.out.startswith("r3  render.")
    assert shown.widest <= 80
    assert "@" not in found.out + shown.out


def test_rehearse_sends_nothing_and_changes_nothing(sendonce: Call, loaded: str, folder: Path) -> None:
    sendonce("rehearse", loaded)

    assert not (folder / ".sendonce/outbox").exists()
    assert sendonce("status", loaded, "--json").json["state"] == "ready"


def test_preview_writes_a_templates_letter_from_its_examples(sendonce: Call, store: Store, order: Path) -> None:
    files = sendonce("preview", "order", "--variables", '{"name": "Zoë"}', "--json").json

    assert sorted(files) == ["eml", "html", "txt"]
    assert "Dear Zoë, your order X-1" in Path(files["txt"]).read_text()
    message = message_from_bytes(Path(files["eml"]).read_bytes(), policy=policy.default)
    assert (message["subject"], message["reply-to"]) == ("Order X-1", "help@shop.example")
    assert message.get_body(("html",)).get_content().startswith("<p>Dear Zoë")
    assert Path(".sendonce/preview").stat().st_mode & 0o077 == 0


def test_preview_shows_the_very_letter_of_a_recipient(sendonce: Call, loaded: str) -> None:
    answer = sendonce("preview", loaded, "r2")

    assert answer.code == 0
    assert "Subject: Order B-2" in answer.out
    (text,) = Path(".sendonce/preview").glob("spring.*.txt")
    assert text.read_text().startswith("Dear Bob, your order B-2")


def test_preview_of_a_letter_that_cannot_be_made_says_why(sendonce: Call, loaded: str) -> None:
    answer = sendonce("preview", loaded, "r3", "--json")

    assert answer.code == 1
    assert answer.json["error"]["reason"].startswith("render.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere"], "no such template"),
        (["spring", "r9"], "no recipient with that id"),
        (["winter", "r1"], "no campaign 'winter'"),
        (["order", "--variables", "{"], "--variables is not JSON"),
        (["order", "--variables", "[1]"], "--variables is not a JSON object"),
        (["spring", "r1", "--locale", "fr"], "the recipient's own locale"),
        (["order", "--locale", "enn"], "--locale 'enn' is no locale; did you mean en?"),
        (["newsletter", "--locale", "vnn"], "newsletter speaks en, fr, vi, ar"),
        (["order", "--timezone", "Paris"], "--timezone 'Paris' is no time zone; did you mean Europe/Paris?"),
        (["order", "--timezone", "Europe/Pariss"], "did you mean Europe/Paris?"),
        (["order", "--timezone", "Mars/Olympus"], "write an IANA name like Europe/Paris"),
        (
            ["order", "--variables", '{"nmae": "Ann"}'],
            "has no variable 'nmae'; did you mean name? it takes name, order",
        ),
    ],
)
def test_a_preview_that_cannot_be_meant_exits_with_2(
    sendonce: Call, loaded: str, arguments: list[str], said: str
) -> None:
    answer = sendonce("preview", *arguments)

    assert answer.code == 2
    assert said in answer.err


def test_templates_are_listed_with_those_that_ship(sendonce: Call, store: Store, order: Path) -> None:
    (order / "../torn").mkdir()
    (order / "../torn/template.yaml").write_text("priority: urgent")

    listed = {line["name"]: line for line in sendonce("templates", "list", "--json").json}

    assert set(listed) == {"newsletter", "order", "otp", "receipt", "torn"}
    assert (listed["order"]["priority"], listed["order"]["locales"]) == ("high", ["en"])
    assert listed["torn"]["fault"]
    assert sendonce("templates", "list").widest <= 80


def test_push_pins_a_template_in_the_store_and_takes_none_with_errors(
    sendonce: Call, store: Store, order: Path
) -> None:
    pushed = sendonce("templates", "push", "order", "--json").json[0]
    row = store.read(lambda reader: reader.get(TemplateContent, pushed["hash"]))
    assert row is not None
    assert row.name == "order"

    (order / "body.txt.j2").write_text("{{ ''.__class__ }}")
    answer = sendonce("templates", "push", "order", "--json")
    assert answer.code == 1
    assert json.loads(answer.out)["error"]["reason"] == "template"
    assert "`sendonce check order`" in answer.err


def test_check_lists_faults_with_file_and_line(sendonce: Call, store: Store, order: Path) -> None:
    (order / "body.txt.j2").write_text("Dear {{ name }}\n{{ surname }}\n")

    answer = sendonce("check", "order", "--json")

    assert answer.code == 1
    errors = [finding for finding in answer.json if finding["level"] == "error"]
    assert [(finding["path"], finding["line"]) for finding in errors] == [("body.txt.j2", 2)]
    assert sendonce("check", "order").widest <= 80


def test_preview_in_a_language_that_the_template_lacks_says_which_it_is(sendonce: Call, store: Store) -> None:
    answer = sendonce("preview", "newsletter", "--locale", "de")

    assert answer.code == 0
    assert "newsletter speaks en, fr, vi, ar, not de: this is the letter in en." in " ".join(answer.err.split())
    assert sendonce("preview", "newsletter", "--locale", "pt_br").code == 0
    assert "not" not in sendonce("preview", "newsletter", "--locale", "en-GB").err


def test_preview_takes_zones_and_locales_as_lists_do(sendonce: Call, store: Store, order: Path) -> None:
    (order / "body.txt.j2").write_text("{{ recipient.locale }} {{ recipient.timezone }} {{ name }}")

    files = sendonce("preview", "order", "--locale", "EN_gb", "--timezone", "europe/paris", "--json").json

    assert Path(files["txt"]).read_text().startswith("en-GB Europe/Paris")


def test_preview_of_an_undeclared_name_says_what_was_meant(sendonce: Call, store: Store, order: Path) -> None:
    (order / "body.txt.j2").write_text("Dear {{ nmae }}")
    misspelled = sendonce("preview", "order", "--json").json["error"]["message"]
    (order / "body.txt.j2").write_text("Dear {{ zebra }}")
    unknown = sendonce("preview", "order", "--json").json["error"]["message"]

    assert "did you mean name?" in misspelled
    assert "declare zebra under variables" in unknown


def test_load_counts_who_gets_the_default_language(sendonce: Call, store: Store, folder: Path) -> None:
    rows = ["1,a@one.example,de,Ann", "2,b@one.example,de-AT,Bo", "3,c@one.example,fr-CA,Cy", "4,d@one.example,ja,Di"]
    rows += ["5,e@one.example,,Ed", "6,e@one.example,de,Again", "7,f@one.example,de,Flo"]
    (folder / "people.csv").write_text("recipient_id,email,locale,name\n" + "\n".join(rows))

    told = sendonce("load", "spring", "people.csv", "-t", "newsletter")
    report = sendonce("load", "spring", "people.csv", "-t", "newsletter", "--json").json
    rehearsed = sendonce("rehearse", "spring", "--json").json

    assert report["default_language"] == {"de": 2, "de-AT": 1, "ja": 1}
    assert rehearsed["default_language"] == report["default_language"]
    said = "4 recipients (de 2, de-AT 1, ja 1) get the template's default language"
    assert said in " ".join(told.out.split())
    assert said in " ".join(sendonce("rehearse", "spring").out.split())


def test_load_names_columns_that_the_template_uses_nowhere(
    sendonce: Call, store: Store, order: Path, folder: Path
) -> None:
    (folder / "people.csv").write_text("recipient_id,email,name,order,shoe_size\n1,a@one.example,Ann,A-1,42\n")

    answer = sendonce("load", "spring", "people.csv", "-t", "order", "--json")

    assert answer.code == 0
    assert answer.json["unused_columns"] == ["shoe_size"]
    assert answer.json["missing_variables"] == []


def test_load_refuses_a_list_without_a_column_that_the_template_requires(
    sendonce: Call, store: Store, order: Path, folder: Path
) -> None:
    (folder / "people.csv").write_text("recipient_id,email,Name,order\n1,a@one.example,Ann,A-1\n")

    answer = sendonce("load", "spring", "people.csv", "-t", "order")

    assert answer.code == 2
    assert "people.csv: no column gives name, which template order requires; --column name=Name" in answer.err
    assert sendonce("list", "--json").json == []
    assert sendonce("load", "spring", "people.csv", "-t", "order", "--column", "name=Name").code == 0


def test_a_variable_that_only_some_rows_lack_is_no_fault_of_the_list(
    sendonce: Call, store: Store, order: Path, folder: Path
) -> None:
    """It may stand in template_variables; what a row lacks is that row's fault."""
    rows = ["1,a@one.example,A-1,{}", '2,b@one.example,A-2,"{""name"": ""Bo""}"']
    (folder / "some.csv").write_text("recipient_id,email,order,template_variables\n" + "\n".join(rows))
    (folder / "none.csv").write_text("recipient_id,email,order,template_variables\n" + rows[0])

    assert sendonce("load", "some", "some.csv", "-t", "order", "--json").json["missing_variables"] == []
    assert sendonce("load", "none", "none.csv", "-t", "order", "--json").json["missing_variables"] == ["name"]
    assert "no row gives variable name" in " ".join(sendonce("load", "none", "none.csv", "-t", "order").out.split())


def test_submit_warns_of_a_missing_and_of_a_failed_rehearsal(sendonce: Call, loaded: str, folder: Path) -> None:
    (folder / "good.csv").write_text(HEADER + ROWS[0])
    for name, people in (("good", "good.csv"), ("new", "good.csv"), ("again", "people.csv")):
        assert sendonce("load", name, people, "-t", "order").code == 0
    sendonce("rehearse", "good")
    sendonce("rehearse", "again")

    answers = {name: sendonce("submit", name) for name in ("good", "new", "again")}
    said = {name: " ".join((answer.out + answer.err).split()) for name, answer in answers.items()}
    failed = sendonce("rehearse", loaded, "--json").json["failed"]

    assert "1 letter at" in said["good"]
    assert "sendonce rehearse" not in said["good"]
    assert "Not rehearsed: `sendonce rehearse new` renders every letter" in said["new"]
    assert "1 recipient would get no letter" in said["again"]
    assert "`sendonce rehearse again` names them" in said["again"]
    assert sendonce("submit", loaded, "--json").json["rehearsal"]["failed"] == failed == 1


def test_a_rehearsal_of_what_runs_changes_nothing(sendonce: Call, store: Store, loaded: str) -> None:
    sendonce("submit", loaded)
    before = campaign_row(store, loaded)

    sendonce("rehearse", loaded)

    assert campaign_row(store, loaded) == before
