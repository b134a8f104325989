"""Email addresses: whether one is well formed, how it goes on the wire, and when two are the same mailbox.

email-validator decides, strictly and without DNS. Plain ASCII addresses, nearly all there are, take a fast path that
accepts only what email-validator accepts, with the same result (a property test compares them).
"""

import re
import unicodedata
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.utils import parseaddr
from functools import lru_cache
from typing import Final, NamedTuple

from email_validator import SPECIAL_USE_DOMAIN_NAMES, EmailNotValidError, validate_email

ADDRESS_MAX: Final = 254  # RFC 3696 erratum 1690
LOCAL_PART_MAX: Final = 64  # RFC 5321 4.5.3.1.1

_ATEXT: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_LOCAL: Final = re.compile(rf"{_ATEXT}++(?:\.{_ATEXT}++)*+")
_PLAIN: Final = re.compile(rf"({_LOCAL.pattern})@((?:{_LABEL}\.)+([A-Za-z]{{2,63}}))")
_RESERVED_ENDINGS: Final = frozenset(name.rsplit(".", 1)[-1] for name in SPECIAL_USE_DOMAIN_NAMES)

# RFC 2047 section 5: an encoded word must not appear in an address. Readers that decode it anyway see another one.
_ENCODED_WORD: Final = re.compile(r"=\?.*\?.*\?.*\?=")

_ANY_ENCODED_WORD: Final = re.compile(r"=\?[^?\s]*\?[bBqQ]\?[^?]*\?=")

# What people cannot see, and so paste along with an address: spaces, zero-width and direction marks, soft hyphens.
_INVISIBLE_EDGE: Final = (
    " \t\n\r\v\f\x85\xa0\xad\u1680\u061c\u180e\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u200b\u200c\u200d\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u202f\u205f\u2060\u2061\u2062\u2063"
    "\u2064\u2066\u2067\u2068\u2069\u3000\ufeff"
)
# Letters and marks that show nothing (Unicode: Default_Ignorable_Code_Point), beyond the categories C and Z.
_IGNORABLE: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
# One address with or without a name: `"Doe, Jane" <jane@shop.example>`. A name without quotes has none of what would
# start another address or a comment of its own.
_NAMED: Final = re.compile(r'(?P<name>(?:"(?:[^"\\]|\\.)*+"|[^"<>@,;:\\])*+)<(?P<address>[^<>]*+)>\s*')
_SEVERAL: Final = re.compile(r"[^@,;]++@[^@,;]++(?:[,;][^@,;]++@[^@,;]++)+[,;\s]*")
_QUOTED: Final = re.compile(r'"((?:[^"\\]|\\.)*+)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_SPECIAL: Final = re.compile(r'[()<>@,:;".\[\]\\]')
# What no header may hold: it ends a line somewhere, or is half a character.
_NEVER_IN_A_HEADER: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})


# Names that nobody can own: RFC 2606 and RFC 6761 keep them for documentation and tests.
_PLACEHOLDER_ENDINGS: Final = frozenset({"example", "invalid", "test", "localhost"})
_PLACEHOLDER_DOMAINS: Final = frozenset({"example.com", "example.net", "example.org"})


class Address(NamedTuple):
    """`wire`: as it goes out, local part as given (NFC), domain an A-label in lower case.

    `key_form`: equal for two spellings of one mailbox (lower case, NFC, A-label); the input of `ids.address_key`.
    """

    wire: str
    key_form: str


class BadAddress(ValueError):
    """Not an address. `reason` says what is wrong in words, and holds no part of the value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def normalise(raw: str) -> Address:
    """The address in `raw`. What cannot be seen is trimmed at both ends, and refused inside. BadAddress says why not.

    Refused though RFC 5321 knows them: quoted local parts, address literals, display names, reserved domains
    (RFC 6761), domains without a dot, local parts that hold an encoded word.
    """
    plain = _PLAIN.fullmatch(raw)
    if plain is not None:
        local, domain, ending = plain.groups()
        if (
            len(raw) <= ADDRESS_MAX
            and len(local) <= LOCAL_PART_MAX
            and "--" not in domain
            and "=?" not in local
            and ending.lower() not in _RESERVED_ENDINGS
        ):
            return Address(f"{local}@{domain.lower()}", raw.lower())
    return _in_a_known_domain(raw) or checked_by_the_library(raw)


def sender_address(raw: str, *, strict: bool = True) -> str:
    """The one address in a `From` or `Reply-To`, with its name if it has one, as every sender can write it.

    The name is what the text says, in quotes where it must be; the domain becomes an A-label in lower case. BadAddress
    for anything but one address, for a character that breaks a line, and for a mailbox name that is not ASCII: a letter
    from it is refused by every server without SMTPUTF8 (RFC 6531). strict: also for an encoded word that stands for
    such a character, which a writer that is sure to leave it as text need not refuse.
    """
    if not fits_a_header(raw):
        raise BadAddress("holds a line break, a control character or half a character")
    found = _NAMED.fullmatch(raw)
    if found is None and set(raw) & set("<>,;: "):
        raise BadAddress("is more than one address, or has a name that needs quotes")
    wire = normalise(found["address"] if found else raw).wire
    if needs_smtputf8(wire):
        raise BadAddress("has letters beyond ASCII before the @-sign, which few servers take")
    name = _QUOTED.sub(lambda quoted: _ESCAPED.sub(r"\1", quoted[1]), found["name"]) if found else ""
    name = re.sub(" +", " ", name).strip(" ")
    address = f"{_as_a_name(name)} <{wire}>" if name else wire
    if strict and hides_a_line_break(name):
        raise BadAddress("has a name that holds a line break or control character in an encoded word")
    if parseaddr(address) != (name, wire):
        raise BadAddress("has a name that cannot be told from an address")
    return address


def domain_of(address: str) -> str:
    """The domain of one address, with a name before it or without, in lower case."""
    return address.rpartition("@")[2].strip().rstrip(">").lower()


def is_placeholder(domain: str) -> bool:
    """Whether a domain can never be anybody's, nor any below it: it stands in examples (RFC 2606, RFC 6761)."""
    labels = domain.lower().rstrip(".").split(".")
    return labels[-1] in _PLACEHOLDER_ENDINGS or ".".join(labels[-2:]) in _PLACEHOLDER_DOMAINS


def fits_a_header(text: str) -> bool:
    """Whether a text can stand on one line of a header. A no-break space and what joins emoji can."""
    return text.isprintable() or not any(unicodedata.category(one) in _NEVER_IN_A_HEADER for one in text)


def hides_a_line_break(text: str) -> bool:
    """Whether an encoded word (RFC 2047) in a text stands for what `fits_a_header` refuses: some write it out."""
    for word in _ANY_ENCODED_WORD.findall(text):
        try:
            decoded = str(make_header(decode_header(word)))
        except (HeaderParseError, LookupError, ValueError):
            continue
        if not fits_a_header(decoded):
            return True
    return False


def _as_a_name(name: str) -> str:
    """A display name as RFC 5322 3.4 has it before an address."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' if _SPECIAL.search(name) else name


def checked_by_the_library(raw: str) -> Address:
    """`normalise` without its fast paths."""
    text = raw.strip(_INVISIBLE_EDGE)
    if not text:
        raise BadAddress("empty")
    if "<" in text and _NAMED.fullmatch(text):
        raise BadAddress("has a name or angle brackets around it; give only what stands between < and >")
    if text.count("@") > 1 and _SEVERAL.fullmatch(text):
        raise BadAddress("is more than one address; give each a row of its own")
    if _has_hidden(text):
        raise BadAddress("holds a space, a control character or one that cannot be seen")
    local, at, domain = text.rpartition("@")
    if not at:
        raise BadAddress("no @-sign")
    if _ENCODED_WORD.search(local):
        raise BadAddress("holds an encoded word before the @-sign")
    ascii_domain = _domain(local, domain)
    local = unicodedata.normalize("NFC", local)
    return Address(f"{local}@{ascii_domain}", f"{unicodedata.normalize('NFC', local.lower())}@{ascii_domain}")


def needs_smtputf8(wire: str) -> bool:
    """Whether every server on the way must support SMTPUTF8 (RFC 6531): the local part is not ASCII."""
    return not wire.isascii()


def _in_a_known_domain(raw: str) -> Address | None:
    """`normalise` for a plain local part in any domain that was met before: a list has few domains beyond ASCII."""
    local, _, domain = raw.rpartition("@")
    if not _LOCAL.fullmatch(local) or len(local) > LOCAL_PART_MAX or "=?" in local:
        return None
    ascii_domain, longest = _known_domain(domain)
    if not ascii_domain or len(local) + 1 + longest > ADDRESS_MAX:
        return None
    return Address(f"{local}@{ascii_domain}", f"{local.lower()}@{ascii_domain}")


@lru_cache(maxsize=8192)
def _known_domain(domain: str) -> tuple[str, int]:
    """The A-label form of a domain and the bytes of its longest spelling; nothing for one that the library refuses."""
    if len(domain) > ADDRESS_MAX or _has_hidden(domain):
        return "", 0
    try:
        found = validate_email(f"a@{domain}", check_deliverability=False, strict=True)
    except EmailNotValidError:
        return "", 0
    spellings = (domain, found.domain, found.ascii_domain or "")
    return spellings[-1].lower(), max(len(spelling.encode()) for spelling in spellings)


def _has_hidden(text: str) -> bool:
    """Whether a text holds a space, a control character, half a surrogate pair, or what cannot be seen."""
    return any(unicodedata.category(character)[0] in "CZ" for character in text) or bool(_IGNORABLE.search(text))


def _domain(local: str, domain: str) -> str:
    """The A-label domain of an address that email-validator accepts."""
    try:
        found = validate_email(f"{local}@{domain}", check_deliverability=False, strict=True).ascii_domain
    except EmailNotValidError:
        raise BadAddress(_what_is_wrong(local, domain)) from None
    return found.lower()


def _is_mailbox_name(local: str) -> bool:
    if _LOCAL.fullmatch(local):
        return True
    try:
        validate_email(f"{local}@a.example", check_deliverability=False, strict=True)
    except EmailNotValidError:
        return False
    return True


def _what_is_wrong(local: str, domain: str) -> str:
    """Why email-validator refused, in our words: its own may quote the address."""
    if not local:
        return "nothing before the @-sign"
    if not domain:
        return "nothing after the @-sign"
    if not _known_domain(domain)[0]:
        ending = domain.rsplit(".", 1)[-1].lower()
        if ending in _RESERVED_ENDINGS:
            return f"the domain ends in .{ending}, which is reserved and never reaches anyone (RFC 6761)"
        return "not a domain name after the @-sign"
    if len(local) > LOCAL_PART_MAX or not _is_mailbox_name(local):
        return f"not a mailbox name of at most {LOCAL_PART_MAX} characters before the @-sign"
    return f"longer than {ADDRESS_MAX} bytes"
