"""Which operator a mailbox belongs to."""

import pytest

from sendonce.mailboxes import KNOWN, DomainGroups, domain_pattern

GROUPS = DomainGroups({**KNOWN, "corp": ["*.corp.example", "corp.example"], "own": ["mail.corp.example"]})


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("ann@gmail.com", "google"),
        ("ann@googlemail.com", "google"),
        ("ann@yahoo.fr", "yahoo"),
        ("ann@yahoo.co.uk", "yahoo"),
        ("ann@yahoo.com.br", "yahoo"),
        ("ann@hotmail.com", "microsoft"),
        ("ann@web.de", "gmx"),
        ("ann@corp.example", "corp"),
        ("ann@a.b.corp.example", "corp"),
        ("ann@mail.corp.example", "own"),  # a whole name comes before what lies below
        ('"a@gmail.com"@shop.example', None),
        ("ann@notgmail.com", None),
        ("ann@gmail.com.shop.example", None),
        ("ann@mail.yahoo.fr", None),
        ("ann@yahoo.a.b.c", None),
        ("ann@yahoo", None),
        ("ann@xcorp.example", None),
    ],
)
def test_the_group_of_an_address(address: str, group: str | None) -> None:
    assert GROUPS.of(address) == group


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("Gmail.COM", "gmail.com"),
        (" yahoo.* ", "yahoo.*"),
        ("*.Corp.Example.", "*.corp.example"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("*.bücher.example", "*.xn--bcher-kva.example"),
    ],
)
def test_a_pattern_as_it_is_held(text: str, pattern: str) -> None:
    assert domain_pattern(text) == pattern


@pytest.mark.parametrize(
    "text", ["", "*", "gmail", "*.*", "a@gmail.com", "g mail.com", "gmail.*.com", "*.yahoo.*", "-a.com"]
)
def test_what_is_no_domain_is_refused_with_the_mend(text: str) -> None:
    with pytest.raises(ValueError, match="is not a domain; write gmail"):
        domain_pattern(text)


def test_every_known_group_holds_patterns_and_no_domain_twice() -> None:
    patterns = [pattern for group in KNOWN.values() for pattern in group]
    assert [domain_pattern(pattern) for pattern in patterns] == patterns
    assert len(set(patterns)) == len(patterns)
