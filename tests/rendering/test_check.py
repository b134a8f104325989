"""`check`: each mistake is found once, with its file, line and mend; a sound template gets no finding."""

from pathlib import Path

import pytest

from sendonce.rendering import samples
from sendonce.rendering.catalogue import Manifest, TemplateSource, find_template, manifest_of, source_of
from sendonce.rendering.check import SUBJECT_MAX, SUBJECT_SHOWN, Finding, check_template, without_way_out
from sendonce.rendering.render import compile_template
from sendonce.rendering.samples import Limits, Sample, render_samples, try_sample, wanted_samples

CASES = Path(__file__).parent.parent / "cases"
MANIFEST = """\
priority: bulk
variables:
  name: {default: friend}
"""
SOUND = {
    "template.yaml": MANIFEST,
    "subject.j2": "Spring, {{ name }}",
    "body.txt.j2": "Hello {{ name }}\n{{ unsubscribe_url }}\n",
    "body.html.j2": '<p>Hello {{ name }}</p><a href="{{ unsubscribe_url }}">Unsubscribe</a>',
}


@pytest.fixture(autouse=True)
def _samples_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Renders samples in this process, half a second sooner each; tests of that process ask for `own_process`."""

    def here(source: TemplateSource, manifest: Manifest, _: Limits) -> list[Sample]:
        return [try_sample(compile_template(source), sample) for sample in wanted_samples(manifest)]

    if "own_process" not in request.fixturenames:
        monkeypatch.setattr("sendonce.rendering.check.render_samples", here)


@pytest.fixture
def own_process() -> None:
    """Samples are rendered as they are in use."""


def check(files: dict[str, str | None]) -> list[Finding]:
    """The findings for the sound template with some files changed; None takes one away."""
    return check_template(
        source_of("spring", {path: text for path, text in (SOUND | files).items() if text is not None})
    )


def seen(findings: list[Finding]) -> list[tuple[str, str, str, int]]:
    assert all(finding.message and finding.mend for finding in findings)
    return [(finding.level, finding.code, finding.path, finding.line) for finding in findings]


def test_a_sound_template_has_no_finding() -> None:
    assert check({}) == []


# -- Variables --------------------------------------------------------------------------------------------------------


def test_an_undefined_variable_is_found_once_where_it_stands() -> None:
    found = check({"body.txt.j2": "Hello\n{{ nmae }} {{ nmae }}\n{{ unsubscribe_url }}"})
    assert seen(found) == [("error", "undefined-variable", "body.txt.j2", 2)]
    assert "nmae" in found[0].message


def test_a_default_does_not_make_a_misspelled_name_right() -> None:
    assert seen(check({"subject.j2": "{{ nmae | default('friend') }}, {{ name }}"})) == [
        ("error", "undefined-variable", "subject.j2", 1)
    ]


def test_an_unused_variable_is_a_warning_on_its_line() -> None:
    found = check({"template.yaml": MANIFEST + "  nmae: text\n"})
    assert seen(found) == [("warning", "unused-variable", "template.yaml", 4)]


def test_variables_of_included_files_macros_loops_and_sets_are_understood() -> None:
    files: dict[str, str | None] = {
        "template.yaml": MANIFEST + "  rows: {type: list, example: [{n: 1}]}\n  first-name: text\n",
        "body.txt.j2": "{% from 'macros.j2' import line %}{% set total = 3 %}{% include 'footer.j2' %}"
        "{% for row in rows %}{{ line(row.n) }}{{ loop.index }}{% endfor %}{{ vars['first-name'] }}",
        "macros.j2": "{% macro line(n) %}{{ n }}{% endmacro %}",
        "footer.j2": "{{ total }} {{ recipient.id }} {{ campaign.id }} {{ unsubscribe_url }}",
    }
    assert check(files) == []


def test_an_undefined_variable_of_an_included_file_is_found_in_that_file() -> None:
    files: dict[str, str | None] = {
        "body.txt.j2": "{% include 'footer.j2' %}",
        "footer.j2": "{{ unsubscribe_url }}\n{{ addres }}",
    }
    assert seen(check(files)) == [("error", "undefined-variable", "footer.j2", 2)]


def test_an_optional_variable_that_is_simply_printed_fails_for_those_who_lack_it() -> None:
    found = check(
        {
            "template.yaml": MANIFEST + "  city: {required: false, example: Paris}\n",
            "body.txt.j2": "Hello\n{{ city }} {{ unsubscribe_url }}",
        }
    )
    assert seen(found) == [("error", "sample-failed", "body.txt.j2", 2)]
    assert "only what is required" in found[0].message
    assert "undefined variable: city" in found[0].message


def test_a_file_that_nothing_includes_is_a_warning() -> None:
    assert seen(check({"old.j2": "{{ whatever }}"})) == [("warning", "unused-file", "old.j2", 0)]


# -- Parts and locales ------------------------------------------------------------------------------------------------


def test_missing_parts() -> None:
    assert seen(check({"body.txt.j2": None})) == [("error", "missing-text", "body.txt.j2", 0)]
    assert seen(check({"subject.j2": None})) == [("error", "missing-part", "subject.j2", 0)]
    assert seen(check({"body.txt.j2": None, "body.html.j2": None})) == [("error", "missing-part", "body.txt.j2", 0)]
    assert check({"body.html.j2": None}) == []


@pytest.mark.parametrize(
    ("case", "code"), [("html-only", "missing-text"), ("blank-text", None), ("blank-subject", "sample-failed")]
)
def test_the_recorded_cases_of_empty_content(case: str, code: str | None) -> None:
    folder = CASES / "content-order-empty" / case
    files = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.j2")}
    manifest = "priority: high\nvariables:\n  x: {type: boolean, default: false}\n  title: {default: ''}\n"
    found = check_template(source_of("spring", {**files, "template.yaml": manifest}))
    assert code in [None, *(finding.code for finding in found if finding.level == "error")]


def test_a_locale_without_a_part_and_one_that_would_mix_languages() -> None:
    found = check(
        {
            "template.yaml": MANIFEST + "locales: [en, fr, ar, en-GB]\n",
            "fr/subject.j2": "Printemps, {{ name }}",
            "fr/body.html.j2": '<a href="{{ unsubscribe_url }}">Se désabonner</a>',
        }
    )
    assert seen(found) == [
        ("error", "missing-locale", "fr/body.txt.j2", 0),
        ("error", "missing-locale", "template.yaml", 0),
    ]
    assert "the locale ar has no part of its own" in found[1].message


def test_a_folder_that_the_manifest_does_not_list() -> None:
    files = {path.replace("", "", 1) if path == "template.yaml" else f"vi/{path}": text for path, text in SOUND.items()}
    assert seen(check({**files})) == [("warning", "unlisted-locale", "template.yaml", 0)]


# -- Bulk -------------------------------------------------------------------------------------------------------------


def test_bulk_needs_a_way_out_in_each_part() -> None:
    found = check({"body.txt.j2": "Hello {{ name }}", "body.html.j2": "<p>{# {{ unsubscribe_url }} #}</p>"})
    assert seen(found) == [
        ("error", "missing-unsubscribe", "body.html.j2", 0),
        ("error", "missing-unsubscribe", "body.txt.j2", 0),
    ]


def test_a_way_out_behind_a_condition_is_none() -> None:
    found = check({"body.txt.j2": "Hello{% if name == 'Ada' %}{{ unsubscribe_url }}{% endif %}"})
    assert seen(found) == [("error", "missing-unsubscribe", "body.txt.j2", 0)]


def test_transactional_letters_need_no_way_out() -> None:
    manifest = MANIFEST.replace("bulk", "critical")
    assert check({"template.yaml": manifest, "body.txt.j2": "Hello", "body.html.j2": None}) == []


# -- Subjects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "levels"),
    [(SUBJECT_SHOWN, []), (SUBJECT_SHOWN + 1, ["warning"]), (SUBJECT_MAX, ["warning"]), (SUBJECT_MAX + 1, ["error"])],
)
def test_a_subject_that_no_mailbox_shows(length: int, levels: list[str]) -> None:
    found = check({"subject.j2": "x" * (length - 6) + "{{ name }}"})
    assert {(finding.level, finding.code) for finding in found} == {(level, "long-subject") for level in levels}


# -- Allowed, and yet -------------------------------------------------------------------------------------------------


def test_constructs_that_are_mostly_mistakes() -> None:
    html = """<a href="{{ unsubscribe_url }}">x</a>
<b title={{ name }}>x</b>
{{ name | safe }}
{% autoescape false %}{{ name }}{% endautoescape %}
<style>@media print{#hero{display:none}#}</style>"""
    assert seen(check({"body.html.j2": html})) == [
        ("warning", "unquoted-attribute", "body.html.j2", 2),
        ("warning", "unescaped", "body.html.j2", 3),
        ("warning", "unescaped", "body.html.j2", 4),
        ("warning", "css-in-comment", "body.html.j2", 5),
    ]


def test_the_recorded_unquoted_attribute_is_shown() -> None:
    html = (CASES / "js-url" / "body.html.j2").read_text(encoding="utf-8")
    manifest = "priority: high\nvariables: {url: url, t: text}\n"
    found = check({"template.yaml": manifest, "subject.j2": "Hi", "body.txt.j2": "Hi", "body.html.j2": html})
    assert seen(found) == [("warning", "unquoted-attribute", "body.html.j2", 1)]


def test_a_language_s_missing_plural_forms_are_named() -> None:
    arabic = {f"ar/{path}": text for path, text in SOUND.items() if path != "template.yaml"}
    arabic["ar/subject.j2"] = "{{ 3 | plural(one='# a', other='# b') }}{{ name }}"
    found = check({"template.yaml": MANIFEST + "locales: [en, ar]\n", **arabic})
    assert seen(found) == [("warning", "plural-forms", "ar/subject.j2", 1)]
    assert "zero, two, few, many" in found[0].message


# -- Refused before anything is compiled ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{{ 'a' * 10**9 }}", "unsafe"),
        ("{{ name.__class__ }}", "unsafe"),
        ("{% include 'body.txt.j2' %}", "unsafe"),
        ("{{ first-name }}", "hyphen-name"),
        ("{% if %}", "syntax"),
    ],
)
def test_an_unsafe_template_is_looked_at_no_further(text: str, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sendonce.rendering.check.render_samples", lambda *_: pytest.fail("rendered"))
    found = check({"body.txt.j2": text})
    assert {finding.code for finding in found} == {code}
    assert seen(found)[0][2:] == ("body.txt.j2", 1)


def test_a_wrong_manifest_is_a_finding_not_an_exception() -> None:
    assert seen(check({"template.yaml": "priority: bulk\nvariabels: {}"})) == [
        ("error", "manifest", "template.yaml", 2)
    ]


# -- The process for samples ------------------------------------------------------------------------------------------


def tried(child: str, monkeypatch: pytest.MonkeyPatch, limits: Limits) -> list[str]:
    """What is said of the two samples when the process does this instead of rendering."""
    monkeypatch.setattr(samples, "_CHILD", samples._CHILD.replace("main()", f"pass\n{child}"))
    source = source_of("spring", SOUND)
    return [sample.problem for sample in render_samples(source, manifest_of(source), limits)]


BOUND = "import sys, json; from sendonce.rendering import samples; j = json.load(sys.stdin); "
BOUND += "samples._bound(samples.Limits(*j['limits']))\n"


@pytest.mark.usefixtures("own_process")
def test_samples_are_rendered_in_a_process_of_their_own() -> None:
    assert check({"subject.j2": "x" * 200 + "{{ name }}", "body.txt.j2": "{{ nope }}{{ unsubscribe_url }}"}) != []
    source = source_of("spring", SOUND)
    done = render_samples(source, manifest_of(source))
    assert [(sample.locale, sample.barest, sample.problem) for sample in done] == [("en", False, ""), ("en", True, "")]
    assert {sample.links_out for sample in done} == {("text", "html")}
    assert {sample.subject for sample in done} == {len("Spring, friend")}


@pytest.mark.parametrize(
    ("child", "limits", "said"),
    [
        ("while True: pass", Limits(cpu_s=1), "used more than 1 s of computing"),
        ("'x' * (1 << 30)", Limits(memory=1 << 29), "or 512 MiB of memory"),
        ("open('big', 'w').write('x')", Limits(), "ended without a letter"),
        ("import time; time.sleep(60)", Limits(wall_s=0.5), "took longer than 0.5 s"),
        ("print('x' * (1 << 21))", Limits(), "ended without a letter"),
    ],
)
def test_a_process_that_takes_too_much_is_ended_and_its_letters_are_findings(
    child: str,
    limits: Limits,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    problems = tried(BOUND + child, monkeypatch, limits)
    assert len(problems) == 2
    assert all(said in problem for problem in problems)
    assert [path for path in tmp_path.iterdir() if path.stat().st_size] == []


def test_one_letter_that_ends_the_process_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    child = BOUND + (
        "w = [samples.Sample(s['locale'], s['barest']) for s in j['wanted']]\n"
        "if w[0].barest: samples._write(w[0])\n"
        "else: sys.exit(9)"
    )
    first, second = tried(child, monkeypatch, Limits())
    assert first.startswith("used more than")
    assert second == ""


def test_samples_see_no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SENDGRID_API_KEY", "canary")
    problems = tried("import os, sys; sys.exit('SENDGRID_API_KEY' in os.environ)", monkeypatch, Limits())
    assert problems == ["ended without a letter"] * 2


def test_a_letter_beyond_the_limits_of_rendering_is_a_finding() -> None:
    loops = "{% for a in name %}{% for b in name %}{% for c in name %}{{ name }}{% endfor %}{% endfor %}{% endfor %}"
    manifest = f"priority: high\nvariables:\n  name: {{default: {'x' * 400}}}\n"
    found = check({"template.yaml": manifest, "subject.j2": "Hi", "body.txt.j2": loops, "body.html.j2": None})
    assert {finding.code for finding in found} == {"sample-failed"}


def test_a_template_made_for_one_person_may_not_go_out_in_bulk() -> None:
    """`load --priority bulk` asks this, whatever the manifest says."""
    assert "body.txt.j2" in without_way_out(find_template("otp"))
    assert without_way_out(find_template("newsletter")) == []
