"""`test-send`: letters of a template or a campaign to the addresses that are named, and to nobody else."""

from pathlib import Path

import pytest

from schemas.tables import Attempt, Campaign, Permit
from sendonce.control import suppressions
from sendonce.stores.base import Store
from sendonce.stores.opening import shared_store
from tests.cli.conftest import Call
from tests.pipelines.shop import letters_in
from tests.providers.sendgrid import KEY, FakeSendGrid

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def campaign(sendonce: Call, store: Store, folder: Path) -> str:
    """A loaded campaign of two, not started."""
    rows = "r1,ann@one.example,fr,Ann\nr2,bob@one.example,en,Bob\n"
    (folder / "people.csv").write_text(f"recipient_id,email,locale,name\n{rows}")
    path = folder / "templates/note"
    path.mkdir(parents=True)
    (path / "template.yaml").write_text(
        "priority: bulk\nvariables: {name: {type: text, example: Ada}}\nlocales: [en, fr]\n"
    )
    (path / "subject.j2").write_text("Hello {{ name }} in {{ recipient.locale }}")
    (path / "body.txt.j2").write_text("{{ unsubscribe_url }}\n")
    assert sendonce("load", "spring", "people.csv", "-t", "note").code == 0
    return "spring"


def test_a_template_goes_to_each_address_with_its_examples(sendonce: Call, campaign: str, folder: Path) -> None:
    answer = sendonce("test-send", "note", "qa@shop.example", "Ops@shop.example")

    assert answer.code == 0
    assert answer.out.startswith("1. accepted\n2. accepted\nKept as test-note-")
    assert "@" not in answer.out
    letters = letters_in(folder / ".sendonce/outbox")
    assert [(letter["To"], letter["Subject"]) for letter in letters] == [
        ("qa@shop.example", "Hello Ada in en"),
        ("Ops@shop.example", "Hello Ada in en"),
    ]
    assert all(letter["List-Unsubscribe"] for letter in letters)
    assert sendonce("status", "spring", "--json").json["state"] == "ready", "nobody of the campaign is touched"


def test_a_campaign_goes_as_one_of_its_recipients_would_get_it(sendonce: Call, campaign: str, folder: Path) -> None:
    first = sendonce("test-send", "spring", "qa@shop.example", "--as", "r1", "--json")
    other = sendonce("test-send", "spring", "qa@shop.example", "--as", "r2", "--json")

    assert (first.code, first.json["letters"]) == (0, [{"outcome": "accepted", "reason": None}])
    assert first.json["campaign"] != other.json["campaign"]
    letters = letters_in(folder / ".sendonce/outbox")
    assert sorted(letter["Subject"] for letter in letters) == ["Hello Ann in fr", "Hello Bob in en"]
    assert {letter["To"] for letter in letters} == {"qa@shop.example"}
    assert sendonce("status", first.json["campaign"], "--json").json["state"] == "completed"
    assert sendonce("outcome", first.json["campaign"], "test-1", "--json").json["outcome"] == "accepted"


def test_a_test_takes_permits_and_waits_for_them(
    sendonce: Call, campaign: str, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = (folder / "sendonce.yaml").read_text()
    (folder / "sendonce.yaml").write_text(settings.replace("batch_size: 5000, limits: []", "limits: [{cap: 1/h}]"))
    sendonce("config", "apply")
    monkeypatch.setattr("sendonce.cli.trial._PATIENCE_S", 1.0)

    answer = sendonce("test-send", "note", "qa@shop.example", "ops@shop.example")

    assert answer.code == 1
    assert sorted(answer.out.splitlines()[:2]) == ["1. accepted", "2. open"]
    assert "`sendonce run` goes on" in " ".join(answer.out.split())
    assert len(letters_in(folder / ".sendonce/outbox")) == 1
    assert sum(row.n for row in store.read(lambda reader: reader.scan(Permit, "lane:bulk"))) == 1


def test_who_is_suppressed_gets_no_test_either(sendonce: Call, campaign: str, store: Store, folder: Path) -> None:
    suppressions.add(store, "qa@shop.example", reason="bounced", by="ann")
    answer = sendonce("test-send", "note", "qa@shop.example", "--json")
    assert (answer.code, answer.json["letters"]) == (1, [{"outcome": "suppressed", "reason": "suppressed.bounced"}])
    assert letters_in(folder / ".sendonce/outbox") == []


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (("note", "qa at shop.example"), "address 1 is none"),
        (("note", *["qa@shop.example"] * 21), "a test goes to 1 to 20"),
        (("nothing", "qa@shop.example"), "nothing"),
        (("note", "qa@shop.example", "--as", "r1"), "there is no campaign 'note'"),
        (("spring", "qa@shop.example", "--as", "r9"), "no recipient with that id"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_calls_send_and_keep_nothing(
    sendonce: Call, campaign: str, store: Store, call: tuple[str, ...], words: str
) -> None:
    answer = sendonce("test-send", *call)
    assert answer.code == 2
    assert words in " ".join(answer.err.split())
    assert "shop.example" not in answer.err.replace("ann@shop.example", "")
    assert [row.campaign_id for row in store.read(lambda reader: reader.scan(Campaign))] == ["spring"]


def test_a_test_goes_by_a_real_sender_under_the_same_rules(
    sendonce: Call, campaign: str, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THE_KEY", KEY)
    links = "from: Shop <news@shop.example>\nunsubscribe: {base_url: https://shop.example/u}\n"
    with FakeSendGrid(folder / "log.jsonl", bodies=folder / "bodies.jsonl") as fake:
        mail = f"senders: {{mail: {{adapter: sendgrid, api_key: env:THE_KEY, base_url: '{fake.url}'}}}}\n"
        (folder / "sendonce.yaml").write_text(links + mail)
        sendonce("config", "apply")
        refused = sendonce("test-send", "note", "qa@shop.example")
        (folder / "sendonce.yaml").write_text(links + mail + 'recipients_allowed: ["@shop.example"]\n')
        sendonce("config", "apply")
        sent = sendonce("test-send", "note", "qa@shop.example", "ann@one.example", "--json")
        letters = fake.letters()

    assert refused.code == 2
    assert "this store was made for tests" in " ".join(refused.err.split())
    assert [letter["reason"] or letter["outcome"] for letter in sent.json["letters"]] == [
        "accepted",
        "skipped.not_allowed",
    ]
    assert [letter.to for letter in letters] == ["qa@shop.example"]
    attempts = shared_store(store.url).read(lambda reader: reader.scan(Attempt))
    assert [attempt.verdict for attempt in attempts] == ["accepted"]
