"""Form letters as inline templates: what arrives is, byte for byte, what plain filling gives, whoever reads them."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from schemas.letters import FormLetter, Letter, slot_key
from sendonce.senders.ses_template import DATA_MAX, Template
from tests.providers.ses_letters import NotRendered, ReaderMatters, handlebars, rendered
from tests.senders.ses_letters import FORM, PREFIX, S0, S1, packed


def arrived(form: FormLetter, letter: Letter) -> tuple[str, ...] | None:
    """The letter as every reader of templates makes it; None when it does not go by one."""
    template = Template(form)
    data = template.data(letter)
    if data is None:
        return None
    return tuple(rendered(part, json.loads(data)) for part in (template.subject, template.text, template.html))


def test_a_form_letter_as_ses_takes_it() -> None:
    template = Template(FORM)
    assert template.subject == "Hello {{skx70000}}"
    assert template.text == "Dear {{skx70000}}, your code is {{skx70001}}.\n"
    assert template.html == "<p>Dear {{skx70000}}, <b>{{skx70001}}</b></p>\n"
    assert template.data(packed(1)) == '{"skx70000":"Ann 1","skx70001":"c-1"}'


@pytest.mark.parametrize(
    ("own", "as_template"),
    [
        ("p{color:red}", "p{color:red}"),
        ("@media x{p{a:b}}", "@media x{p{a:b{{skx7c}}{{skx7c}}"),
        (f"w{{width:{S0}}}", "w{width:{{skx70000}}{{skx7c}}"),
        (f"{{{S0}", "{{skx7o}}{{skx70000}}"),
        (f"C:\\{S0}", "C:{{skx7b}}{{skx70000}}"),
        (f"C:\\dir {S0}", "C:\\dir {{skx70000}}"),
        ("{{ name }}", "{{skx7o}}{{skx7o}} name {{skx7c}}{{skx7c}}"),
        (f"{S0}{S1}", "{{skx70000}}{{skx70001}}"),
        ("{", "{"),
    ],
)
def test_braces_of_the_forms_own_are_never_part_of_a_tag(own: str, as_template: str) -> None:
    assert Template(FormLetter(PREFIX, 2, "S", own, "")).text == as_template


# Pieces that mean something to a reader of templates, in any order and beside any slot.
PIECES = st.sampled_from(
    ["{", "}", "{{", "}}", "{{{", "}}}", "\\", "\\\\", "{{name}}", "{{#if x}}", "~", " ", "a", "é\n"]
)
OWN = st.lists(st.one_of(PIECES, st.sampled_from([S0, S1])), max_size=12).map("".join)
VALUE = st.lists(
    st.sampled_from(["{", "}", "}}", "{{", "\\", "$1", "&", "<b>", "{s}", '"', "a", "é", "=?", "\t"]), max_size=5
).map("".join)


@settings(max_examples=600, deadline=None)
@given(OWN, OWN, VALUE, VALUE)
@example(f"{{{S0}}}", f"\\{S0}\\{S1}", "{", "}")
@example(f"{S0}{S1}", f"{S0}{{{{x}}}}{S1}", "{", "{")
def test_whatever_stands_beside_a_slot_arrives_as_it_is(text: str, html: str, one: str, two: str) -> None:
    form = FormLetter(PREFIX, 2, "Subject", text + S0, html + S1)
    letter = packed(1, values=[one, two])
    found = arrived(form, letter)
    if found is None:
        assert "{{" in one or "{{" in two
    else:
        assert found == form.fill([one, two])


def test_readers_that_differ_are_noticed() -> None:
    """The judge of the tests above can say no."""
    with pytest.raises(ReaderMatters):
        rendered("{{{a}}}", {"a": "x"})
    with pytest.raises(ReaderMatters):
        rendered("{{a}}", {"a": "{{b}}", "b": "x"})
    with pytest.raises(ReaderMatters):
        rendered("\\{{a}}", {"a": "x"})
    with pytest.raises(NotRendered):
        handlebars("{{a}}}", {"a": "x"})


@pytest.mark.parametrize(
    "values",
    [
        ["{{name}}", "x"],  # nothing that a stranger wrote is for a template
        ["a", "{{{x}}}"],
        [f"-{PREFIX}-0001-", "x"],  # a name of ours
        ["Ann", "a\ud800"],  # half a character
        ["Ann\nBcc: x", "x"],  # in the subject
        ["=?utf-8?q?x?=", "x"],  # so, too
        ["Ann"],  # a slot without a value
        ["Ann", "x" * DATA_MAX],
    ],
)
def test_what_no_template_carries_goes_whole(values: list[str]) -> None:
    assert Template(FORM).data(packed(1, values=values)) is None


def test_an_encoded_word_is_not_put_together_in_the_subject() -> None:
    """Case encoded-newline-injection, in two halves: neither value is one, and both together would be."""
    form = FormLetter(PREFIX, 2, f"{S0}{S1}", f"{S0} {S1}\n", "")
    assert Template(form).data(packed(1, values=["=", "?utf-8?q?=0a?="])) is None
    assert Template(form).data(packed(1, values=["a=b", "c?"])) is not None
    assert Template(FormLetter(PREFIX, 1, f"=?x {S0}", S0, "")).data(packed(1, values=["a"])) is None


def test_a_line_break_outside_the_subject_is_a_value_like_any() -> None:
    form = FormLetter(PREFIX, 1, "Hello", slot_key(PREFIX, 0), "")
    assert arrived(form, packed(1, values=["one\ntwo\r\n"])) == ("Hello", "one\ntwo\r\n", "")
