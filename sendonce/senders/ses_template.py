"""A form letter in the language of SES's inline templates.

`{{name}}` stands for a value, and that is all: with the template in the request SES knows "only simple substitutions"
(https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_Template.html), and it escapes no value
(https://docs.aws.amazon.com/ses/latest/dg/send-personalized-email-advanced.html). A stored template is Handlebars,
where `{{{`, `}}}` and `\\{{` mean something too. Which of the two reads an inline one, and whether it looks into
values, is not said, so nothing here depends on it: a brace or backslash of the form's own that touches a tag, or is one
of several braces, is itself a value; names hold the form's prefix, which is in no value; and a value with `{{` is not
for a template at all.
"""

import re
from collections.abc import Sequence
from typing import Final

import orjson

from schemas.letters import FormLetter, Letter, slot_key
from sendonce.addresses import fits_a_header

# https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_ReplacementTemplate.html
DATA_MAX: Final = 262_144
_RUN: Final = re.compile(r"[{}\\]+")
_NAMES: Final = {"{": "o", "}": "c", "\\": "b"}


class Template:
    """A form letter as SES takes it, worked out once: `subject`, `text` and `html` with tags for the slots."""

    def __init__(self, form: FormLetter) -> None:
        self._form = form
        self._key = re.compile(f"-{re.escape(form.prefix)}-([0-9]{{4}})-")
        self._signs: dict[str, str] = {}
        self.subject = self._part(form.subject)
        self.text = self._part(form.text)
        self.html = self._part(form.html)
        self._names = [self._name(f"{number:04d}") for number in range(form.slots)]
        self._in_subject = [number for number in range(form.slots) if slot_key(form.prefix, number) in form.subject]
        self._plain_subject = fits_a_header(form.subject) and "=?" not in form.subject

    def data(self, letter: Letter) -> str | None:
        """The replacement data of one letter as JSON text; None for a letter that cannot go by a template."""
        values = letter.values
        joined = "".join(values)
        if len(values) != len(self._names) or self._form.prefix in joined or any("{{" in value for value in values):
            return None
        if not self._plain_subject or not self._fits_the_subject(values):
            return None
        try:
            data = orjson.dumps({**dict(zip(self._names, values, strict=True)), **self._signs}).decode()
        except TypeError:
            return None
        return data if len(data) <= DATA_MAX else None

    def _fits_the_subject(self, values: Sequence[str]) -> bool:
        """Whether the subject stays one line, and what looks like an encoded word (RFC 2047) is none."""
        return all(fits_a_header(values[n]) and "=?" not in values[n] for n in self._in_subject) and (
            not any("=" in values[n] or "?" in values[n] for n in self._in_subject)
            or "=?" not in self._form.fill(list(values))[0]
        )

    def _part(self, text: str) -> str:
        pieces = self._key.split(text)
        last = len(pieces) - 1
        return "".join(
            self._tag(piece) if place % 2 else self._own(piece, after_tag=place > 0, before_tag=place < last)
            for place, piece in enumerate(pieces)
        )

    def _own(self, text: str, *, after_tag: bool, before_tag: bool) -> str:
        """The form's own text, with signs written as values where some reader could take them for part of a tag."""

        def written(run: re.Match[str]) -> str:
            touches = (after_tag and run.start() == 0) or (before_tag and run.end() == len(text))
            if not touches and "{{" not in run[0] and "}}" not in run[0]:
                return run[0]
            return "".join(map(self._sign, run[0]))

        return _RUN.sub(written, text)

    def _sign(self, sign: str) -> str:
        self._signs[self._name(_NAMES[sign])] = sign
        return self._tag(_NAMES[sign])

    def _tag(self, name: str) -> str:
        return f"{{{{{self._name(name)}}}}}"

    def _name(self, name: str) -> str:
        return f"s{self._form.prefix}{name}"
