"""Groups of mailbox providers: which domains one operator receives mail for, so that a limit can count them together.

A group's domains are patterns: `gmail.com` is that domain alone, `yahoo.*` a name under any ending of one or two parts
(`yahoo.fr`, `yahoo.co.uk`), `*.corp.example` everything below a domain. A domain belongs to the first group that names
it; whole names come before endings, and endings before what lies below.

Only addresses are looked at, never DNS: a company's own domain that Google or Microsoft hosts is in no group unless
its settings name it.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

# Domains that large operators give to the public. Not complete: a group's settings may name its domains themselves.
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "google": ("gmail.com", "googlemail.com"),
    "microsoft": ("outlook.*", "hotmail.*", "live.*", "msn.com", "windowslive.com", "passport.com"),
    "yahoo": ("yahoo.*", "ymail.com", "rocketmail.com", "myyahoo.com", "aol.*", "aim.com"),
    "apple": ("icloud.com", "me.com", "mac.com"),
    "gmx": ("gmx.*", "web.de"),
    "mailru": ("mail.ru", "inbox.ru", "list.ru", "bk.ru", "internet.ru"),
    "orange": ("orange.fr", "wanadoo.fr"),
    "qq": ("qq.com", "foxmail.com"),
}

_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_PATTERN: Final = re.compile(rf"(?:\*\.)?{_LABEL}(?:\.{_LABEL})+|{_LABEL}\.\*")


def domain_pattern(text: str) -> str:
    """A pattern as groups hold it: lower case, international names as A-labels. ValueError says the mend."""
    ends = text.strip().rstrip(".").removeprefix("*.").removesuffix(".*")
    try:
        plain = ends.lower().encode("idna").decode() if not ends.isascii() else ends.lower()
    except UnicodeError:
        plain = ""
    pattern = text.strip().rstrip(".").replace(ends, plain, 1) if ends else ""
    if not _PATTERN.fullmatch(pattern):
        raise ValueError(
            f"{text!r} is not a domain; write gmail.com, yahoo.* (any ending) or *.corp.example (everything below it)"
        )
    return pattern


class DomainGroups:
    """Which group an address belongs to. Safe for several threads; remembers the domains that it was asked for."""

    def __init__(self, groups: Mapping[str, Sequence[str]]) -> None:
        """groups: patterns (`domain_pattern`) by the group's name."""
        self._whole: dict[str, str] = {}
        self._named: dict[str, str] = {}
        self._below: dict[str, str] = {}
        for group, patterns in groups.items():
            for pattern in patterns:
                if pattern.startswith("*."):
                    self._below.setdefault(pattern[2:], group)
                elif pattern.endswith(".*"):
                    self._named.setdefault(pattern[:-2], group)
                else:
                    self._whole.setdefault(pattern, group)
        self.of_domain = lru_cache(maxsize=65_536)(self._find)

    def of(self, address: str) -> str | None:
        """The group of an address as it goes out (domain in lower case, A-labels), None when no group names it."""
        return self.of_domain(address.rpartition("@")[2])

    def _find(self, domain: str) -> str | None:
        found = self._whole.get(domain)
        if found is not None:
            return found
        name, _, ending = domain.partition(".")
        if ending and name in self._named and ending.count(".") <= 1:
            return self._named[name]
        while "." in domain:
            domain = domain.partition(".")[2]
            if domain in self._below:
                return self._below[domain]
        return None
