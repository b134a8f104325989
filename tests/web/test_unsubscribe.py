import html.parser
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.tables import Recipient, Suppression
from sendonce.control.campaigns import get_campaign
from sendonce.control.unsubscribe import links_of
from sendonce.stores.base import Store, StoreUnavailable
from sendonce.stores.opening import init_store
from sendonce.web.pages import ASK, BAD_LINK, DONE, LANGUAGES, LATER, UNCHANGED, language_for, page
from tests.control.lists import CASES, Loads, recipients
from tests.web.served import Served, served

BASE = "https://shop.example/u"
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = init_store(f"sqlite:///{tmp_path / 'store.db'}")
    yield opened
    opened.close()


@pytest.fixture
def people(store: Store, tmp_path: Path) -> list[Recipient]:
    Loads(store, tmp_path).case(
        "list-unsubscribe/recipients.csv",
        campaign_id="spring",
        unsubscribe_base_url=BASE,
        from_address='"Shop & <Co>" <news@shop.example>',
    )
    return recipients(store, "spring")


@pytest.fixture
def http(store: Store) -> Iterator[Served]:
    with served(store) as server:
        yield server


def path_of(store: Store, person: Recipient) -> str:
    options = json.loads(get_campaign(store, person.campaign_id).options)
    link = store.read(lambda reader: links_of(reader, options)).link_for(person)
    return link.removeprefix("https://shop.example")


def suppressed(store: Store) -> list[str]:
    return [row.address_key for row in store.read(lambda reader: reader.scan(Suppression))]


class Tags(html.parser.HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def all(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == name]


def multipart(fields: dict[str, str]) -> tuple[bytes, str]:
    parts = "".join(
        f'--b0undary\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    return f"{parts}--b0undary--\r\n".encode(), "multipart/form-data; boundary=b0undary"


def test_case_list_unsubscribe(store: Store, people: list[Recipient], http: Served) -> None:
    """The requests of the case, one after the other, for the first recipient; the second one is never touched."""
    path = path_of(store, people[0])
    for wanted in json.loads((CASES / "list-unsubscribe/requests.json").read_text()):
        before = suppressed(store)
        if "body_field" in wanted:
            store.transact(lambda tx: tx.delete(*tx.scan(Suppression)), tag="test")
            before = []
            body, kind = multipart(wanted["body_field"])
            answer = http(wanted["method"], path, body, Content_Type=kind)
        elif wanted["method"] == "POST":
            answer = http("POST", path, wanted["body"].encode(), Content_Type=wanted["content_type"])
        else:
            answer = http(wanted["method"], path)
        assert (suppressed(store) != before) is wanted["changes"], wanted
        if "status" in wanted:
            assert answer.status == wanted["status"]
    assert suppressed(store) == [people[0].address_key]


def test_a_get_shows_a_page_with_a_button_that_posts_one_click(
    store: Store, people: list[Recipient], http: Served
) -> None:
    path = path_of(store, people[1])
    shown = http("GET", path)
    tags = Tags(shown.body)

    assert shown.status == 200
    assert tags.all("html") == [{"lang": "en", "dir": "ltr"}]
    (form,) = tags.all("form")
    assert form == {"method": "post"}
    (field,) = tags.all("input")
    assert len(tags.all("button")) == len(tags.all("main")) == len(tags.all("h1")) == len(tags.all("title")) == 1
    assert not tags.all("a") + tags.all("img") + tags.all("script")
    assert "Shop &amp; &lt;Co&gt;" in shown.body
    assert suppressed(store) == []

    done = http("POST", path, f"{field['name']}={field['value']}".encode(), Content_Type=FORM)
    assert (done.status, "You are unsubscribed" in done.body) == (200, True)
    assert suppressed(store) == [people[1].address_key]
    assert http.click(path).status == 200


def test_a_head_has_the_headers_of_a_get_and_no_body(store: Store, people: list[Recipient], http: Served) -> None:
    path = path_of(store, people[0])
    got, head = http("GET", path), http("HEAD", path)
    volatile = {"Date"}
    assert (head.status, head.body) == (200, "")
    assert {n: v for n, v in head.headers.items() if n not in volatile} == {
        n: v for n, v in got.headers.items() if n not in volatile
    }


def test_every_page_is_closed_to_scripts_frames_and_caches(store: Store, people: list[Recipient], http: Served) -> None:
    for answer in (http("GET", path_of(store, people[0])), http("GET", "/u/nothing"), http("GET", "/healthz")):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Server" not in answer.headers
        assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("prefix", ["/", "/u/", "/any/where/"])
def test_the_path_before_the_token_does_not_matter(
    store: Store, people: list[Recipient], http: Served, prefix: str
) -> None:
    token = path_of(store, people[0]).rpartition("/")[2]
    assert http("GET", prefix + token).status == 200
    assert http.click(f"{prefix}{token}?utm_source=x").status == 200


@pytest.mark.parametrize("path", ["/", "/u/", "/u/x", "/u/%C3%A9", "/u/" + "A" * 300, "/u/%00", "/u/..%2fetc"])
def test_a_bad_token_gets_a_page_and_404(http: Served, path: str) -> None:
    shown, posted = http("GET", path, Accept_Language="fr"), http.click(path)
    assert (shown.status, posted.status) == (404, 404)
    assert "Ce lien ne fonctionne pas" in shown.body
    assert "This link does not work" in posted.body


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", FORM),
        (b"List-Unsubscribe=one-click", FORM),
        (b"List-Unsubscribe=One-Click", "text/plain"),
        (b"List-Unsubscribe=One-Click", ""),
        (b"list-unsubscribe=One-Click", FORM),
        (b"List-Unsubscribe=One-Click&List-Unsubscribe=x", FORM),
        (b"\xff\xfe", FORM),
        (b"&".join(b"a=1" for _ in range(500)), FORM),
        (b'{"List-Unsubscribe": "One-Click"}', "application/json"),
        (b"--b0undary\r\n", "multipart/form-data; boundary=b0undary"),
        (b"List-Unsubscribe=One-Click", "multipart/form-data"),
        multipart({"List-Unsubscribe": "No"}),
        multipart({"Other": "One-Click"}),
    ],
    ids=repr,
)
def test_a_post_that_does_not_say_one_click_changes_nothing(
    store: Store, people: list[Recipient], http: Served, body: bytes, kind: str
) -> None:
    answer = http("POST", path_of(store, people[0]), body, Content_Type=kind)
    assert (answer.status, suppressed(store)) == (400, [])
    assert "Nothing was changed" in answer.body


def test_other_methods_and_large_bodies_are_refused(store: Store, people: list[Recipient], http: Served) -> None:
    path = path_of(store, people[0])
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH"):
        answer = http(method, path)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, POST")
    assert http("POST", path, b"List-Unsubscribe=One-Click&x=" + b"x" * 20_000, Content_Type=FORM).status == 413
    assert suppressed(store) == []


def test_clicks_at_once_suppress_once(store: Store, people: list[Recipient], http: Served) -> None:
    path = path_of(store, people[0])
    codes: list[int] = []
    threads = [threading.Thread(target=lambda: codes.append(http.click(path).status)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert codes == [200] * 8
    assert suppressed(store) == [people[0].address_key]


class Away:
    """A store that is away."""

    url = "sqlite:////away.db"

    def read(self, work: Any, **options: Any) -> Any:
        raise StoreUnavailable("store /away.db: locked; try again")

    transact = read


def test_a_store_that_is_away_is_said_and_asks_to_come_again(caplog: pytest.LogCaptureFixture) -> None:
    with served(Away()) as http, caplog.at_level(logging.ERROR):  # type: ignore[arg-type]
        answer, health = http.click("/u/SECRETTOKEN"), http("GET", "/healthz")
    assert (answer.status, answer.headers["Retry-After"], health.status) == (503, "60", 503)
    assert "Please try again" in answer.body
    assert "SECRETTOKEN" not in caplog.text


def test_healthz(http: Served) -> None:
    answer = http("GET", "/healthz")
    assert (answer.status, answer.body) == (200, "ok\n")
    assert http("HEAD", "/healthz").body == ""


def test_no_address_and_no_token_reaches_a_page_or_a_log(
    store: Store, people: list[Recipient], http: Served, caplog: pytest.LogCaptureFixture
) -> None:
    path = path_of(store, people[0])
    with caplog.at_level(logging.DEBUG):
        bodies = [http("GET", path).body, http.click(path).body, http.click(path + "x").body]
    for text in (*bodies, caplog.text):
        assert "@" not in text
        assert people[0].recipient_id not in text
    assert path.rpartition("/")[2] not in caplog.text


@pytest.mark.parametrize(
    ("wish", "locale", "language"),
    [
        ("", "", "en"),
        ("", "fr-CA", "fr"),
        ("vi", "fr", "vi"),
        ("ar-EG,ar;q=0.9,en;q=0.8", "en", "ar"),
        ("de,fr;q=0.5,en;q=0.4", "ar", "fr"),
        ("en;q=0.1, fr;q=0.9", "", "fr"),
        ("en;q=0, *", "vi", "vi"),
        ("de", "pt-BR", "en"),
        (";;;q=,=,q=x", "fr", "fr"),
        ("fr;q=nan", "vi", "vi"),
        (",".join(["x"] * 5000), "ar", "ar"),
    ],
)
def test_the_language_is_the_reader_s_then_the_letter_s(wish: str, locale: str, language: str) -> None:
    assert language_for(wish, locale) == language


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("which", [ASK, DONE, BAD_LINK, UNCHANGED, LATER])
def test_each_page_is_there_in_each_language(which: str, language: str) -> None:
    made = page(which, language, "Shop")
    tags = Tags(made.body.decode())
    assert tags.all("html") == [{"lang": language, "dir": "rtl" if language == "ar" else "ltr"}]
    assert len(tags.all("form")) == (which == ASK)
    assert language == "en" or made.body != page(which, "en", "Shop").body


@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
def test_a_form_that_ends_with_a_line_is_taken(store: Store, people: list[Recipient], http: Served, end: bytes) -> None:
    path = path_of(store, people[0])
    kind = "application/x-www-form-urlencoded"
    assert http("POST", path, b"List-Unsubscribe=One-Click" + end, Content_Type=kind).status == 200
