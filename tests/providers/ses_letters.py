"""The letters that people would get from a call to SES.

An inline template knows "only simple substitutions"; a stored one is Handlebars. By which of them SES reads an inline
one, and whether it looks through values again, it does not say: so each way is tried, and a call whose letters depend
on the way is no call to make.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from email.header import decode_header, make_header
from typing import Any

_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$-]*")


@dataclass(frozen=True)
class SentLetter:
    """One letter as its recipient would see it."""

    to: str
    from_address: str
    reply_to: str
    subject: str
    text: str
    html: str
    headers: Mapping[str, str]
    tags: Mapping[str, str]


class ReaderMatters(AssertionError):
    """The letters depend on how SES reads templates."""


class NotRendered(AssertionError):
    """SES would take the letter and not send it: a rendering failure, which only an event tells."""


def letters_of(body: Mapping[str, Any]) -> Iterator[SentLetter]:
    """The letters of a call in the order of its entries. ReaderMatters or NotRendered when they are not certain."""
    answers = ", ".join(body.get("ReplyToAddresses", []))
    if "BulkEmailEntries" not in body:
        yield _simple(body, answers)
        return
    template = body["DefaultContent"]["Template"]
    content = template["TemplateContent"]
    for entry in body["BulkEmailEntries"]:
        data = {
            **json.loads(template.get("TemplateData", "{}")),
            **json.loads(entry["ReplacementEmailContent"]["ReplacementTemplate"]["ReplacementTemplateData"]),
        }
        subject, text, html = (rendered(content.get(part, ""), data) for part in ("Subject", "Text", "Html"))
        yield SentLetter(
            entry["Destination"]["ToAddresses"][0],
            body["FromEmailAddress"],
            answers,
            shown(subject),
            text,
            html,
            _pairs(entry["ReplacementHeaders"]),
            _pairs(entry["ReplacementTags"]),
        )


def _simple(body: Mapping[str, Any], answers: str) -> SentLetter:
    simple = body["Content"]["Simple"]
    return SentLetter(
        body["Destination"]["ToAddresses"][0],
        body["FromEmailAddress"],
        answers,
        shown(simple["Subject"]["Data"]),
        simple["Body"].get("Text", {}).get("Data", ""),
        simple["Body"].get("Html", {}).get("Data", ""),
        _pairs(simple["Headers"]),
        _pairs(body["EmailTags"]),
    )


def _pairs(listed: list[dict[str, str]]) -> dict[str, str]:
    return {one["Name"]: one["Value"] for one in listed}


def shown(subject: str) -> str:
    """A subject as mail programs show it: encoded words (RFC 2047) decoded."""
    return str(make_header(decode_header(subject))) if "=?" in subject else subject


def rendered(text: str, data: Mapping[str, str]) -> str:
    """A text by every reader; ReaderMatters when they differ."""
    results = {reader(text, data) for reader in READERS}
    if len(results) > 1:
        raise ReaderMatters(f"a template is not read in one way only: {sorted(results)}")
    return results.pop()


def handlebars(text: str, data: Mapping[str, str]) -> str:
    """Mustaches as Handlebars' lexer finds them: `\\{{` escapes, `{{{` wants `}}}`, and `{{` wants no third brace."""
    made: list[str] = []
    at = 0
    while (start := text.find("{{", at)) >= 0:
        before = text[at:start]
        if before.endswith("\\") and not before.endswith("\\\\"):
            made.append(before[:-1] + "{{")
            at = start + 2
            continue
        made.append(before[:-1] if before.endswith("\\\\") else before)
        close = "}}}" if text.startswith("{{{", start) else "}}"
        end = text.find(close, start)
        name = text[start + len(close) : end]
        if end < 0 or not _NAME.fullmatch(name) or name not in data or (close == "}}" and text.startswith("}}}", end)):
            raise NotRendered(f"Handlebars cannot read {text[start : start + 40]!r}")
        made.append(data[name])
        at = end + len(close)
    return "".join(made) + text[at:]


def simple(text: str, data: Mapping[str, str]) -> str:
    """Every `{{name}}` replaced once, from left to right."""

    def value(tag: re.Match[str]) -> str:
        if tag[1] not in data:
            raise NotRendered(f"there is no value for {tag[1]!r}")
        return data[tag[1]]

    return re.sub(r"\{\{\s*([^{}\s]+)\s*\}\}", value, text)


def one_by_one(backwards: bool, times: int) -> Callable[[str, Mapping[str, str]], str]:
    """Each value put in its place, name by name, and what that gave looked through again."""

    def read(text: str, data: Mapping[str, str]) -> str:
        for _ in range(times):
            for name in sorted(data, reverse=backwards):
                text = text.replace("{{" + name + "}}", data[name])
        return text

    return read


READERS: tuple[Callable[[str, Mapping[str, str]], str], ...] = (
    handlebars,
    simple,
    *(one_by_one(backwards, times) for backwards in (False, True) for times in (1, 3)),
)
