"""The letters that people would get from a Mail Send request.

SendGrid replaces each key of a personalization's `substitutions` by its value, as plain text, in the subject, the
content and the reply-to address (https://www.twilio.com/docs/sendgrid/api-reference/mail-send/mail-send), and nests up
to four levels deep (https://www.twilio.com/docs/sendgrid/for-developers/sending-email/substitution-tags). In which
order it takes the keys, and whether a value is looked through again, it does not say: so several ways are tried, and
a request whose letters depend on the way is no request to make.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

NESTED = 4


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
    custom_args: Mapping[str, str]


class OrderMatters(AssertionError):
    """The letters depend on the order in which substitutions are made."""


def letters_of(body: Mapping[str, Any]) -> Iterator[SentLetter]:
    """The letters of a request, one for each address in `to`. OrderMatters when they are not certain."""
    content = {part["type"]: part["value"] for part in body["content"]}
    reply_to = body.get("reply_to", {}).get("email", "")
    for one in body["personalizations"]:
        texts = (
            one.get("subject", body.get("subject", "")),
            content.get("text/plain", ""),
            content.get("text/html", ""),
            reply_to,
        )
        subject, text, html, answers = expand(texts, one.get("substitutions", {}))
        for party in one["to"]:
            yield SentLetter(
                party["email"],
                body["from"]["email"],
                answers,
                subject,
                text,
                html,
                {**body.get("headers", {}), **one.get("headers", {})},
                one.get("custom_args", {}),
            )


def expand(texts: tuple[str, ...], substitutions: Mapping[str, str]) -> tuple[str, ...]:
    """The texts with every key replaced, in whichever order. OrderMatters when orders differ."""
    keys = sorted(substitutions)
    orders = [keys, keys[::-1], random.Random(len(keys)).sample(keys, len(keys))]
    results = {
        tuple(_replaced(text, order, substitutions, depth) for text in texts)
        for order in orders
        for depth in (1, NESTED)
    }
    if len(results) > 1:
        raise OrderMatters("the order of substitutions, or looking again into values, changes a letter")
    return results.pop()


def _replaced(text: str, order: list[str], substitutions: Mapping[str, str], depth: int) -> str:
    for _ in range(depth):
        before = text
        for key in order:
            text = text.replace(key, substitutions[key])
        if text == before:
            break
    return text
