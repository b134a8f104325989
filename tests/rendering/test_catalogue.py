"""Templates as content: folders, hashes, the store's row, locale fallback, manifests and their variables."""

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sendonce.rendering import catalogue
from sendonce.rendering.catalogue import (
    TemplateFault,
    VariableFault,
    example_variables,
    find_template,
    from_row,
    manifest_of,
    part_path,
    read_folder,
    source_of,
    text_locale,
    to_row,
    variables_for,
)

NOW = datetime(2026, 1, 15, 9, tzinfo=UTC)


def written(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(text.encode())
    return folder


def template(manifest: str = "priority: bulk\n", *paths: str) -> catalogue.TemplateSource:
    return source_of("spring", {"template.yaml": manifest, **dict.fromkeys(paths, "x")})


# -- Folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_is_its_manifest_and_its_jinja_files(tmp_path: Path) -> None:
    folder = written(
        tmp_path / "spring",
        {
            "template.yaml": "priority: bulk",
            "subject.j2": "Hi",
            "fr/body.txt.j2": "Salut",
            "README.md": "no part",
            ".git/x.j2": "hidden",
            "__pycache__/y.j2": "hidden",
        },
    )
    source = read_folder(folder)
    assert source.name == "spring"
    assert dict(source.files) == {"template.yaml": "priority: bulk", "subject.j2": "Hi", "fr/body.txt.j2": "Salut"}


def test_byte_order_mark_and_line_ends_of_an_editor_do_not_change_the_template(tmp_path: Path) -> None:
    plain = read_folder(
        written(tmp_path / "a" / "spring", {"template.yaml": "priority: bulk\n", "subject.j2": "Hi\nyou"})
    )
    windows = {"template.yaml": "\ufeffpriority: bulk\r\n", "subject.j2": "\ufeffHi\r\nyou"}
    assert read_folder(written(tmp_path / "b" / "spring", windows)) == plain


@pytest.mark.parametrize(
    ("files", "path", "line", "problem"),
    [
        ({"subject.j2": "Hi"}, "template.yaml", 0, "no such file"),
        ({"template.yaml": "a", "subject.j2": "x" * (513 * 1024)}, "subject.j2", 0, "larger than 512 KiB"),
        ({"template.yaml": "a", "subject.j2": "one\ntwo\x00"}, "subject.j2", 2, "NUL"),
        ({"template.yaml": "a", **{f"{n}.j2": "" for n in range(201)}}, "", 0, "more than 200 files"),
    ],
)
def test_a_folder_that_is_no_template_says_what_and_where(
    tmp_path: Path, files: dict[str, str], path: str, line: int, problem: str
) -> None:
    with pytest.raises(TemplateFault, match=problem) as caught:
        read_folder(written(tmp_path / "spring", files))
    assert (caught.value.template, caught.value.path, caught.value.line) == ("spring", path, line)
    assert caught.value.mend


def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    folder = written(tmp_path / "spring", {"template.yaml": "priority: bulk"})
    (folder / "subject.j2").write_bytes(b"one\ntwo \xeb")
    with pytest.raises(TemplateFault, match=r"subject.j2, line 2: not UTF-8"):
        read_folder(folder)


def test_a_link_out_of_the_folder_reads_nobody_elses_file(tmp_path: Path) -> None:
    (tmp_path / "secret.j2").write_text("the secret")
    folder = written(tmp_path / "spring", {"template.yaml": "priority: bulk"})
    os.symlink(tmp_path / "secret.j2", folder / "subject.j2")
    with pytest.raises(TemplateFault, match="leads outside") as caught:
        read_folder(folder)
    assert "the secret" not in str(caught.value)


def test_a_missing_folder_and_an_unfit_name(tmp_path: Path) -> None:
    with pytest.raises(TemplateFault, match="no such folder"):
        read_folder(tmp_path / "none")
    with pytest.raises(TemplateFault, match="no template name"):
        read_folder(written(tmp_path / "spring sale", {"template.yaml": "priority: bulk"}))


# -- Finding ----------------------------------------------------------------------------------------------------------


def test_a_project_s_template_goes_before_the_shipped_one_of_its_name(tmp_path: Path) -> None:
    written(tmp_path / "otp", {"template.yaml": "priority: critical", "subject.j2": "ours"})
    assert find_template("otp", [tmp_path]).files["subject.j2"] == "ours"
    assert find_template("otp", []).files["subject.j2"] != "ours"
    assert find_template(f"{tmp_path}/otp").files["subject.j2"] == "ours"


def test_an_unknown_template_lists_the_known_ones(tmp_path: Path) -> None:
    written(tmp_path / "spring", {"template.yaml": "priority: bulk"})
    with pytest.raises(TemplateFault, match="newsletter, otp, receipt, spring"):
        find_template("sprnig", [tmp_path])


def test_a_name_cannot_walk_out_of_the_folders(tmp_path: Path) -> None:
    with pytest.raises(TemplateFault):
        find_template("..", [tmp_path])


# -- Hash and row -----------------------------------------------------------------------------------------------------


def test_the_hash_pins_name_paths_and_texts() -> None:
    base = source_of("a", {"x.j2": "1", "y.j2": "2"})
    assert source_of("a", {"y.j2": "2", "x.j2": "1"}) == base
    others = [
        source_of("b", {"x.j2": "1", "y.j2": "2"}),
        source_of("a", {"x.j2": "1", "y.j2": "3"}),
        source_of("a", {"x.j2": "1y.j2", "": "2"}),
        source_of("a", {"x.j2": "1"}),
    ]
    assert len({base.template_hash, *(other.template_hash for other in others)}) == 5


def test_the_hash_is_stable_for_ever() -> None:
    """Stores hold it: a change of the formula would orphan every pinned campaign."""
    pinned = "ff34b6f30064e3b77886236710cb5ab8c83dc253b0be1ce1afc5f4784e0895f1"
    assert source_of("spring", {"subject.j2": "Grüße"}).template_hash == pinned


def test_a_template_survives_the_store_and_damage_is_noticed() -> None:
    source = source_of("spring", {"template.yaml": "priority: bulk\n", "subject.j2": "Grüße مرحبا"})
    row = to_row(source, NOW, "ann")
    back = from_row(row)
    assert (back, dict(back.files)) == (source, dict(source.files))
    assert (row.name, row.pushed_at, row.pushed_by) == ("spring", NOW, "ann")
    for damaged in (replace(row, name="other"), replace(row, files=b"junk"), replace(row, template_hash="0" * 64)):
        with pytest.raises(TemplateFault, match="does not match its hash"):
            from_row(damaged)


# -- Locales ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("locale", "path"),
    [
        ("pt-BR", "pt-BR/subject.j2"),
        ("pt_br", "pt-BR/subject.j2"),
        ("pt-PT", "pt/subject.j2"),
        ("PT", "pt/subject.j2"),
        ("zh-Hant-TW", "zh-Hant/subject.j2"),
        ("zh-TW", "subject.j2"),
        ("fr", "subject.j2"),
        ("", "subject.j2"),
        ("../etc", "subject.j2"),
    ],
)
def test_a_missing_part_falls_back_to_the_language_then_to_the_default(locale: str, path: str) -> None:
    source = template("", "subject.j2", "pt/subject.j2", "pt-BR/subject.j2", "zh-Hant/subject.j2")
    source = source_of("spring", {**source.files, "template.yaml": "default_locale: en"})
    assert part_path(source, locale, "subject.j2") == path
    assert part_path(source, locale, "body.txt.j2") is None


def test_the_default_locale_may_have_a_folder_instead_of_the_root() -> None:
    source = template("default_locale: de", "de/subject.j2", "fr/subject.j2")
    assert part_path(source, "it", "subject.j2") == "de/subject.j2"


@pytest.mark.parametrize(
    ("locale", "formats_in"), [("fr-CA", "fr-CA"), ("en-GB", "en-GB"), ("de-AT", "en"), ("?", "en")]
)
def test_dates_follow_the_recipient_only_in_a_language_that_the_letter_speaks(locale: str, formats_in: str) -> None:
    source = template("locales: [en, fr]", "subject.j2", "fr/subject.j2")
    assert text_locale(source, locale) == formats_in


# -- Manifests --------------------------------------------------------------------------------------------------------


def test_a_manifest_says_what_design_names() -> None:
    manifest = manifest_of(
        template(
            """
priority: high
from: "Shop <news@shop.example>"
reply_to: help@shop.example
variables:
  name: {type: text, default: friend, example: Ada}
  code: text
  due:  {type: date, required: false, example: 2026-01-15}
locales: [en, pt-BR]
default_locale: en
default_timezone: Europe/Paris
"""
        )
    )
    assert (manifest.priority, manifest.from_address) == ("high", "Shop <news@shop.example>")
    assert (manifest.reply_to, manifest.default_timezone) == ("help@shop.example", "Europe/Paris")
    assert manifest.locales == ["en", "pt-BR"]
    assert manifest.variables["code"].required
    assert not manifest.variables["name"].required
    assert manifest.variables["due"].example == "2026-01-15"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "holds no settings"),
        ("a: [", 1, "not valid YAML"),
        ("priority: bulk\npriorty: high", 2, "unknown setting priorty"),
        ("priority: urgent", 1, "'critical', 'high' or 'bulk'"),
        ("locales: [en, no]", 1, 'put quotes around it: "no"'),
        ("locales: [en, english]", 1, "'english' is not spelled as a language tag"),
        ("locales: [fr]", 1, "lacks the default locale en"),
        ("variables:\n  a: text\n  n: {type: int}", 3, "variables.n.type"),
        ("variables:\n  n: {type: integer, example: many}", 2, "example is not a whole number"),
        ("variables:\n  n: {default: a, required: true}", 2, "required and default exclude each other"),
        ("variables: {recipient: text}", 1, "would hide a built-in name"),
        ("variables: {_x: text}", 1, "starts with an underscore"),
        ("variables:\n  x: {type: object, default: &d {a: *d}}", 2, "an alias that repeats without end"),
        ("variables:\n  x: &x\n    example: *x", 2, "an alias that repeats without end"),
        ("from: nobody", 1, "is no address"),
        ('from: "x@y.example, z@y.example"', 1, "is no address to send from (is more than one address"),
        ("reply_to: j\u00f6rg@shop.example", 1, "reply_to: is no address to send from (has letters beyond ASCII"),
        ('from: "a@shop.example\\nBcc: b@shop.example"', 1, "is no address"),
    ],
)
def test_a_wrong_manifest_names_the_line_and_the_mend(text: str, line: int, words: str) -> None:
    with pytest.raises(TemplateFault) as caught:
        manifest_of(template(text))
    assert words in str(caught.value)
    assert (caught.value.path, caught.value.line) == ("template.yaml", line)


def test_a_manifest_of_a_million_nested_lists_is_refused_not_fatal() -> None:
    with pytest.raises(TemplateFault):
        manifest_of(template("a: " + "[" * 100_000))


# -- Variables --------------------------------------------------------------------------------------------------------


KINDS = manifest_of(
    template(
        """
variables:
  name:  {type: text, default: friend}
  n:     {type: integer, required: false}
  price: {type: number, required: false}
  vip:   {type: boolean, required: false}
  day:   {type: date, required: false}
  at:    {type: datetime, required: false}
  link:  {type: url, required: false}
  rows:  {type: list, required: false}
  card:  {type: object, required: false}
"""
    )
)


def test_null_and_nan_are_absent_and_defaults_fill_in() -> None:
    assert variables_for(KINDS, {"name": None, "n": float("nan"), "other": 5}) == {"name": "friend", "other": 5}
    assert variables_for(KINDS, {"name": ""}) == {"name": ""}


def test_a_blank_cell_is_no_value_where_no_text_is_wanted() -> None:
    blank = dict.fromkeys(["n", "price", "vip", "day", "at", "link", "rows", "card"], "")
    assert variables_for(KINDS, blank) == {"name": "friend"}


@pytest.mark.parametrize(
    ("name", "given", "seen"),
    [
        ("n", "42", 42),
        ("n", 3.0, 3),
        ("n", "9007199254740993", 9007199254740993),
        ("price", "12.50", 12.5),
        ("price", "3", 3),
        ("vip", "FALSE", False),
        ("name", 7, "7"),
        ("at", "2026-01-15T09:00:00+01:00", "2026-01-15T09:00:00+01:00"),
        ("link", "mailto:ann@one.example", "mailto:ann@one.example"),
    ],
)
def test_a_cell_of_text_becomes_the_type_that_is_declared(name: str, given: object, seen: object) -> None:
    fitted = variables_for(KINDS, {name: given})[name]
    assert (fitted, type(fitted)) == (seen, type(seen))


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("n", "2.5"),
        ("n", True),
        ("n", "1e999"),
        ("price", "twelve"),
        ("price", "inf"),
        ("vip", "yes"),
        ("name", ["Ann"]),
        ("day", "15.01.2026"),
        ("at", "2027-03-08T10:30:00"),
        ("at", "2027-03-08"),
        ("link", "javascript:alert(1)"),
        ("link", "java\nscript:alert(1)"),
        ("link", "https://"),
        ("link", "shop.example/sale"),
        ("rows", {"a": 1}),
        ("card", [1]),
    ],
)
def test_a_value_that_does_not_fit_is_named_but_never_shown(name: str, given: object) -> None:
    with pytest.raises(VariableFault, match=f"variable {name} is not ") as caught:
        variables_for(KINDS, {name: given})
    assert str(given) not in str(caught.value)


def test_example_variables_fit_their_own_manifest() -> None:
    examples = example_variables(KINDS)
    assert examples.keys() == KINDS.variables.keys()
    assert variables_for(KINDS, examples) == examples
    assert example_variables(KINDS, required_only=True) == {}
