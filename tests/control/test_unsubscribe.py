import base64
import hmac
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.outcomes import Outcome
from schemas.tables import Meta, Recipient, Suppression
from sendonce.control.campaigns import get_campaign
from sendonce.control.unsubscribe import (
    TOKEN_MAX,
    BadToken,
    Links,
    Place,
    letter_of,
    links_of,
    make_token,
    newest_key,
    read_token,
    rotate_key,
    unsubscribe,
)
from sendonce.stores.base import Store, StoreRefused
from tests.control.lists import Loads, recipients

BASE = "https://shop.example/u"
KEY = b"k" * 32


def links(store: Store, campaign_id: str = "spring") -> Links:
    options = json.loads(get_campaign(store, campaign_id).options)
    return store.read(lambda reader: links_of(reader, options))


def token_of(store: Store, person: Recipient) -> str:
    return links(store, person.campaign_id).link_for(person).rpartition("/")[2]


def suppressions(store: Store) -> list[Suppression]:
    return store.read(lambda reader: reader.scan(Suppression))


def load(loads: Loads, **options: Any) -> list[Recipient]:
    loads.case("list-unsubscribe/recipients.csv", campaign_id="spring", unsubscribe_base_url=BASE, **options)
    return recipients(loads.store, "spring")


def test_case_list_unsubscribe_each_recipient_has_a_link_of_its_own(loads: Loads, store: Store) -> None:
    people = load(loads)
    made = [links(store).link_for(person) for person in people]

    assert len(set(made)) == 2
    for link, person in zip(made, people, strict=True):
        assert link.startswith(f"{BASE}/")
        assert link.removeprefix(f"{BASE}/").replace("-", "").replace("_", "").isalnum()
        assert link.isascii()
        raw = base64.urlsafe_b64decode(link.rpartition("/")[2] + "==")
        for personal in (person.email, person.recipient_id, person.address_key):
            assert personal.encode() not in raw
        place = store.read(lambda reader, link=link: read_token(reader, link.rpartition("/")[2]))
        assert place == Place("spring", person.batch_no, person.ordinal)


def test_a_link_unsubscribes_its_own_recipient_once(loads: Loads, store: Store) -> None:
    ann, bob = load(loads)
    token = token_of(store, bob)

    assert unsubscribe(store, token)
    (row,) = suppressions(store)
    assert not unsubscribe(store, token)

    assert suppressions(store) == [row]
    assert (row.address_key, row.list_name, row.outcome) == (
        bob.address_key,
        "bulk",
        Outcome.SUPPRESSED_UNSUBSCRIBED,
    )
    assert (row.campaign_id, row.created_by, row.source) == ("spring", "recipient", "unsubscribe")
    assert ann.address_key != bob.address_key


def test_a_campaign_with_a_list_takes_people_off_that_list_only(loads: Loads, store: Store) -> None:
    ann, _ = load(loads, list_name="offers")
    unsubscribe(store, token_of(store, ann))
    assert [row.list_name for row in suppressions(store)] == ["offers"]


def test_a_page_may_show_the_language_and_the_sender_s_name_and_changes_nothing(loads: Loads, store: Store) -> None:
    ann, _ = load(loads, from_address='"Shop" <news@shop.example>')
    shown = letter_of(store, token_of(store, ann))
    assert (shown.locale, shown.from_name) == ("en", "Shop")
    assert suppressions(store) == []


def test_a_new_key_signs_what_is_loaded_later_and_old_links_stay_good(loads: Loads, store: Store) -> None:
    (ann, bob) = load(loads)
    before = token_of(store, ann)
    assert (store.read(newest_key), rotate_key(store), rotate_key(store)) == (0, 1, 2)
    loads.case("list-unsubscribe/recipients.csv", campaign_id="summer", unsubscribe_base_url=BASE)
    (later, _) = recipients(store, "summer")

    assert token_of(store, ann) == before, "a repeated attempt must repeat its bytes"
    assert links(store, "summer").key_no == 2
    assert unsubscribe(store, before)
    assert not unsubscribe(store, token_of(store, later)), "the same person, suppressed by then"
    again = loads.case("list-unsubscribe/recipients.csv", campaign_id="spring", unsubscribe_base_url=BASE)
    assert again.report.already_loaded
    assert links(store).key_no == 0
    assert bob.address_key


def test_a_key_that_is_gone_makes_its_links_bad_and_stops_its_campaign(loads: Loads, store: Store) -> None:
    rotate_key(store)
    ann, _ = load(loads)
    token = token_of(store, ann)
    store.transact(lambda tx: tx.delete(Meta("unsubscribe_key:1", b"")), tag="test")

    with pytest.raises(BadToken):
        unsubscribe(store, token)
    with pytest.raises(StoreRefused, match="unsubscribe key 1"):
        links(store)


def test_any_change_of_a_token_is_refused(loads: Loads, store: Store) -> None:
    ann, _ = load(loads)
    token = token_of(store, ann)
    raw = base64.urlsafe_b64decode(token + "==")
    changed = [raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :] for at in range(len(raw)) for bit in range(8)]
    cut = [raw[:at] for at in range(len(raw))]
    others = [base64.urlsafe_b64encode(each).decode().rstrip("=") for each in [*changed, *cut, raw + b"\0"]]

    for other in [*others, "", "x", "é", token * 9, token + "\n", " " + token, "../" + token]:
        with pytest.raises(BadToken):
            unsubscribe(store, other)
    assert suppressions(store) == []


def test_a_token_of_another_store_or_of_nobody_is_refused(loads: Loads, store: Store) -> None:
    ann, _ = load(loads)
    foreign = make_token(Place("spring", ann.batch_no, ann.ordinal), 0, KEY)
    nobody = make_token(Place("spring", 0, 99), 0, links(store).key)
    for token in (foreign, nobody):
        with pytest.raises(BadToken):
            unsubscribe(store, token)


@given(
    st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True),
    st.integers(0, 2**40),
    st.integers(0, 10_000),
    st.integers(0, 2**20),
)
def test_what_a_token_says_is_what_went_in(campaign_id: str, batch_no: int, ordinal: int, key_no: int) -> None:
    class Keys:
        def get(self, kind: type, name: str) -> Meta:
            return Meta(name, KEY)

    place = Place(campaign_id, batch_no, ordinal)
    key = KEY if key_no else hmac.digest(KEY, b"unsubscribe\x00", "sha256")
    token = make_token(place, key_no, key)
    assert len(token) <= TOKEN_MAX
    assert read_token(Keys(), token) == place  # type: ignore[arg-type]
