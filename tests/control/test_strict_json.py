"""JSON from other people: no digit is lost, nothing ambiguous passes."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sendonce.control.strict_json import BadJson, parse

NAME = st.text('ab"\\ué', max_size=3)
NUMBER = st.one_of(st.integers(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False))
VALUE: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBER, NAME),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAME, inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=300)
@given(VALUE, st.booleans(), st.sampled_from([None, 1]))
def test_what_json_says_is_what_comes_out(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)

    found, shortest = parse(text)

    assert found == value
    assert json.dumps(found) == json.dumps(value)  # 1 and 1.0 and true are not the same
    assert json.dumps(json.loads(shortest)) == json.dumps(value)


@settings(max_examples=300)
@given(st.lists(st.tuples(NAME, NUMBER), max_size=5), st.lists(NAME, max_size=3), st.booleans())
def test_a_name_twice_is_always_found(pairs: list[tuple[str, Any]], noise: list[str], ascii_only: bool) -> None:
    def dump(value: Any) -> str:
        if isinstance(value, str) and ascii_only:
            return '"' + "".join(f"\\u{ord(character):04x}" for character in value) + '"'
        return json.dumps(value, ensure_ascii=False)

    members = ", ".join(f"{dump(name)}: {dump(value)}" for name, value in pairs)
    text = f'{{"noise": [{", ".join(map(dump, noise))}], "x": {{{members}}}}}'

    if len(dict(pairs)) == len(pairs):
        assert parse(text)[0]["x"] == dict(pairs)
    else:
        with pytest.raises(BadJson, match="the same name twice"):
            parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "NaN",
        "[Infinity]",
        "1e999",
        '"\\ud83d"',
        "{'a':1}",
        '{"a":1,}',
        "{} {}",
        "",
        "[" * 5000,
        "1" + "0" * 400,
        "\ufeff{}",
    ],
)
def test_what_strict_parsers_refuse_is_refused_without_a_word_of_it(text: str) -> None:
    with pytest.raises(BadJson) as found:
        parse(text)
    assert found.value.reason.startswith(("not JSON from character", "holds a"))


def test_deep_values_that_orjson_reads_but_does_not_write_are_kept() -> None:
    text = "[" * 400 + "]" * 400

    assert parse(text)[1] == text
