"""End to end: the letters that SendGrid makes of packed requests are, byte for byte, the plain renders."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from schemas.letters import Letter, Letters, slot_key
from sendonce.rendering.catalogue import TemplateSource, find_template
from sendonce.rendering.recipients import Addressee
from sendonce.rendering.render import compile_template, render_batch
from sendonce.senders.base import Request, Verdict
from tests.providers.sendgrid_letters import OrderMatters, SentLetter, expand
from tests.rendering.letters import template
from tests.senders.sendgrid_letters import ATTEMPT, CASES, FORM, S0, S1, scene

NASTY = [
    "-name-",
    "%name%",
    "#name#",
    "[%name%]",
    "<%body%>",
    "<%asm_group_unsubscribe_raw_url%>",
    "{{ name }}",
    "{{{ insert name }}}",
    "[unsubscribe]",
    ":section",
    "--0000--",
    "\\1 \\g<0> $1 $& $$",
    "<script>alert(1)</script> & \"quotes\" 'too'",
    "Zoë Müller-Lüdenscheidt",
    "王小明",
    "👩\u200d👩\u200d👧 \u202eemirp\u202c",
    "e\u0301 and é",
    "a\tb",
    " leading and trailing ",
    "=?utf-8?q?x?=",
    "line\u00a0with nbsp",
    "x" * 3000,
    "0",
    "null",
]


def person(ordinal: int, variables: dict[str, Any], locale: str = "en") -> Addressee:
    return Addressee(
        ordinal,
        f"{ordinal:052d}",
        f"r{ordinal}",
        f"u{ordinal}@one.example",
        locale,
        "Europe/Paris",
        json.dumps(variables),
        f"https://shop.example/u/{ordinal}",
    )


def rendered(source: TemplateSource, people: Sequence[Addressee], *, pack: bool) -> Letters:
    return render_batch(
        compile_template(source),
        people,
        campaign_id="spring",
        from_address="Shop <news@shop.example>",
        reply_to="help@shop.example",
        pack=pack,
    )


def through_sendgrid(folder: Path, letters: Letters) -> tuple[dict[str, SentLetter], int]:
    """The letters that people get, by message id, and how many calls it took."""
    with scene(folder, parallel=2) as there:
        by_form: dict[int | None, list[Letter]] = {}
        for letter in letters.letters:
            by_form.setdefault(letter.form, []).append(letter)
        for chosen in by_form.values():
            reply = there.sender.send(there.sender.prepare(Request("spring", 1, ATTEMPT, letters, chosen)), 60)
            assert (reply.verdict, dict(reply.exceptions)) == (Verdict.ACCEPTED, {})
        got = there.fake.letters()
    assert len({letter.to for letter in got}) == len(got)
    return {letter.custom_args["message_id"]: letter for letter in got}, len(there.calls())


def check(folder: Path, source: TemplateSource, people: Sequence[Addressee]) -> tuple[int, int]:
    """(calls, whole letters) after comparing every letter with its plain render."""
    letters, plain = rendered(source, people, pack=True), rendered(source, people, pack=False)
    got, calls = through_sendgrid(folder, letters)
    wanted = {letter.message_id: plain.texts(letter) for letter in plain.letters}
    assert {name: (one.subject, one.text, one.html) for name, one in got.items()} == wanted
    assert {one.to: one.headers["List-Unsubscribe"] for one in got.values()} == {
        letter.to: f"<{letter.unsubscribe_url}>" for letter in plain.letters
    }
    assert {(one.from_address, one.reply_to) for one in got.values()} == {("news@shop.example", "help@shop.example")}
    return calls, sum(letter.form is None for letter in letters.letters)


def test_the_newsletter(tmp_path: Path) -> None:
    people = [
        person(
            number,
            {"name": f"Ann {number}" if number % 3 else "", "points": number * 7 if number % 4 else None},
            ["en", "fr", "vi", "ar", "de"][number % 5],
        )
        for number in range(300)
    ]
    calls, whole = check(tmp_path, find_template("newsletter", []), people)
    assert whole == 0
    assert calls <= 16


def test_nasty_values_in_the_newsletter(tmp_path: Path) -> None:
    people = [
        person(
            number,
            {"name": value, "brand": value[::-1], "picks": [{"name": value, "price": "1", "url": "https://a.example"}]},
        )
        for number, value in enumerate(NASTY)
    ]
    check(tmp_path, find_template("newsletter", []), people)


def test_nasty_values_everywhere_in_a_form_letter(tmp_path: Path) -> None:
    source = template(
        subject="{{ a }} and {{ b }}",
        text="{{ a }}{{ b }}{{ a }}\n%name% -name- [%x%] <%body%> {% raw %}{{ x }}{% endraw %}\n",
        html='<p title="{{ b }}">{{ a }}{{ b }}</p><a href="https://a.example/?q={{ a|urlencode }}">-name- %x%</a>\n',
    )
    people = [
        person(number, {"a": value, "b": other})
        for number, (value, other) in enumerate(zip(NASTY, NASTY[1:] + NASTY[:1], strict=True))
    ]
    calls, whole = check(tmp_path, source, people)
    assert calls - whole <= 4


def test_values_that_hold_slot_keys_of_their_own_template(tmp_path: Path) -> None:
    source = template(subject="{{ a }}", text="{{ a }} {{ b }}\n")
    prefix = compile_template(source).prefix
    values = [
        slot_key(prefix, 0),
        slot_key(prefix, 1),
        prefix,
        f"-{prefix}",
        f"{slot_key(prefix, 1)}{slot_key(prefix, 0)}",
    ]
    check(tmp_path, source, [person(number, {"a": value, "b": "b"}) for number, value in enumerate(values)])


def test_values_around_ten_thousand_bytes(tmp_path: Path) -> None:
    """Case size-10k-bytes: whatever the size and type of a value, the letter is the plainly rendered one."""
    lines = (CASES / "size-10k-bytes" / "recipients.ndjson").read_text(encoding="utf-8").splitlines()
    variables = [json.loads(line)["template_variables"] for line in lines]
    source = template(
        subject="Hello", text="{{ t|default('') }}|{{ n|default('none') }}|{{ e|default('') }}|{{ k|default(1) }}\n"
    )
    assert check(tmp_path, source, [person(number, one) for number, one in enumerate(variables)])[0] >= 2


# -- the fake's own honesty -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "substitutions",
    [
        {"-a-": "-b-", "-b-": "x"},
        {"-a-": "x-a-", "-b-": "y"},
        {"-a": "x", "-a-": "y"},
    ],
)
def test_the_fake_finds_letters_that_depend_on_the_order(substitutions: dict[str, str]) -> None:
    with pytest.raises(OrderMatters):
        expand(("Dear -a- and -b-",), substitutions)


def test_the_fake_replaces_every_place_in_every_part() -> None:
    assert expand((f"{S0}{S0}", f"a {S1}", FORM.html), {S0: "<x>", S1: "y"}) == (
        "<x><x>",
        "a y",
        "<p>Dear <x>, <b>y</b></p>\n",
    )
