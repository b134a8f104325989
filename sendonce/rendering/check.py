"""`sendonce check`: everything that can be said about a template before it meets a recipient."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from jinja2 import nodes

from sendonce.rendering.catalogue import HTML, PARTS, SUBJECT, TEXT, TemplateSource, locales_in, manifest_of, part_path
from sendonce.rendering.faults import TemplateFault
from sendonce.rendering.lint import lint_file
from sendonce.rendering.manifest import MANIFEST, Manifest
from sendonce.rendering.names import free_names, reachable, used_names, uses_name
from sendonce.rendering.samples import USUAL, Limits, Sample, render_samples
from sendonce.rendering.screening import parse_files, screen

# RFC 5322 section 2.1.1 wants lines of at most 78 characters; mailboxes show less. Beyond 150 it is a mistake.
SUBJECT_SHOWN: Final = 78
SUBJECT_MAX: Final = 150

_NO_WAY_OUT: Final = "a bulk letter without a link to unsubscribe"
_PLACE: Final = re.compile(r" ?\((?P<path>[^()]+), line (?P<line>\d+)\)$")


@dataclass(frozen=True)
class Finding:
    """Something about a template. An error makes a wrong letter, or none; a warning is for a person to judge.

    `path` is relative to the template's folder, "" for the whole of it; `line` counts from 1, 0 if there is none.
    """

    level: Literal["error", "warning"]
    code: str
    path: str
    line: int
    message: str
    mend: str

    def __str__(self) -> str:
        place = (self.path + (f":{self.line}" if self.line else "") + ": ") if self.path else ""
        return f"{self.level}: {place}{self.message}; {self.mend} [{self.code}]"


def check_template(source: TemplateSource, limits: Limits = USUAL) -> list[Finding]:
    """Every finding, errors first, then by file and line; empty for a template without fault.

    A template that does not pass `screen` is looked at no further: nothing of it is compiled or rendered. Stricter
    than sending is: a template whose findings are, say, a missing locale still compiles.
    """
    if faults := screen(source):
        return [Finding("error", _code(fault), fault.path, fault.line, fault.problem, fault.mend) for fault in faults]
    manifest = manifest_of(source)
    trees, _ = parse_files(source)
    found = set(_parts(source, manifest))
    found |= set(_names(source, manifest, trees))
    found |= set(_lints(source, manifest, trees))
    if not any(finding.code == "missing-part" for finding in found):
        found |= set(_once(_samples(source, manifest, render_samples(source, manifest, limits), found)))
    return sorted(found, key=lambda finding: (finding.level, finding.path, finding.line, finding.code, finding.message))


def _once(findings: Iterable[Finding]) -> Iterable[Finding]:
    """One finding for each place and kind, though several letters show it."""
    first: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        first.setdefault((finding.code, finding.path, finding.line), finding)
    return first.values()


def _code(fault: TemplateFault) -> str:
    if fault.path == MANIFEST:
        return "manifest"
    if " means " in fault.problem:
        return "hyphen-name"
    return "unsafe" if fault.problem.startswith("not allowed: ") else "syntax"


def _parts(source: TemplateSource, manifest: Manifest) -> Iterator[Finding]:
    """Missing parts and locales. A letter whose subject speaks another language than its body is a fault too."""
    default = manifest.default_locale
    present = {part for part in PARTS if part_path(source, default, part)}
    if SUBJECT not in present:
        yield Finding("error", "missing-part", SUBJECT, 0, "there is no subject", f"write {SUBJECT}")
    if not present & {HTML, TEXT}:
        yield Finding("error", "missing-part", TEXT, 0, "there is neither a text nor an HTML part", f"write {TEXT}")
    elif TEXT not in present:
        message = "there is no text part: some people cannot read HTML, and filters distrust letters without text"
        yield Finding("error", "missing-text", TEXT, 0, message, f"write {TEXT}")
    for locale in manifest.locales:
        fallback = {part: part_path(source, default, part) for part in PARTS}
        own = {part for part in PARTS if part_path(source, locale, part) != fallback[part]}
        if locale.split("-")[0] == default.split("-")[0]:
            continue
        if not own:
            mend = (
                f"write {', '.join(f'{locale}/{part}' for part in PARTS if part in present)}, or take it off the list"
            )
            yield Finding("error", "missing-locale", MANIFEST, 0, f"the locale {locale} has no part of its own", mend)
            continue
        for part in sorted(present - own):
            message = f"the locale {locale} lacks {part}: its letters would mix two languages"
            yield Finding("error", "missing-locale", f"{locale}/{part}", 0, message, f"write {locale}/{part}")
    for locale in locales_in(source):
        if locale not in manifest.locales:
            message = f"the folder {locale} is not among the locales of {MANIFEST}"
            yield Finding("warning", "unlisted-locale", MANIFEST, 0, message, f"add {locale} to locales")


def _names(source: TemplateSource, manifest: Manifest, trees: Mapping[str, nodes.Template]) -> Iterator[Finding]:
    """Variables that nobody declared, that nobody uses, and bulk letters without a way out."""
    parts = {path: reachable(trees, path) for path in trees if path.rsplit("/", 1)[-1] in PARTS}
    declared = manifest.variables.keys()
    for files in parts.values():
        for use in free_names(trees, files):
            if use.name not in declared:
                message = f"undefined variable: {use.name} is not declared in {MANIFEST}"
                mend = f"declare it under variables: {use.name}, or mend the spelling"
                yield Finding("error", "undefined-variable", use.path, use.line, message, mend)
    touched = set().union(*parts.values()) if parts else set()
    for path in sorted(set(trees) - touched):
        yield Finding("warning", "unused-file", path, 0, "no part uses this file", "include it or remove it")
    used = used_names({path: trees[path] for path in touched})
    for name in sorted(declared - used) if used is not None else []:
        line = _manifest_line(source, name)
        yield Finding(
            "warning", "unused-variable", MANIFEST, line, f"unused variable: no part uses {name}", "remove it"
        )
    if manifest.priority == "bulk":
        yield from (_no_way_out(path, _NO_WAY_OUT) for path in _without_way_out(trees))


def without_way_out(source: TemplateSource) -> list[str]:
    """The bodies that never use `unsubscribe_url`: not to be sent in bulk. TemplateFault for what cannot be parsed."""
    if faults := screen(source):
        raise faults[0]
    return list(_without_way_out(parse_files(source)[0]))


def names_used(source: TemplateSource) -> set[str] | None:
    """Every name that the parts read; None if they read `vars` in a way that hides which. For a template that passes

    `screen`.
    """
    trees, _ = parse_files(source)
    touched = {file for path in trees if path.rsplit("/", 1)[-1] in PARTS for file in reachable(trees, path)}
    return used_names({path: trees[path] for path in touched})


def _without_way_out(trees: Mapping[str, nodes.Template]) -> Iterator[str]:
    for path in trees:
        part = path.rsplit("/", 1)[-1]
        if part in PARTS and part != SUBJECT and not uses_name(trees, reachable(trees, path), "unsubscribe_url"):
            yield path


def _no_way_out(path: str, message: str) -> Finding:
    return Finding("error", "missing-unsubscribe", path, 0, message, "write {{ unsubscribe_url }} as a link")


def _manifest_line(source: TemplateSource, name: str) -> int:
    lines = source.files[MANIFEST].splitlines()
    spelled = re.compile(rf"[\s{{,]*[\"']?{re.escape(name)}[\"']?\s*:")
    return next((number for number, line in enumerate(lines, 1) if spelled.match(line)), 0)


def _lints(source: TemplateSource, manifest: Manifest, trees: Mapping[str, nodes.Template]) -> Iterator[Finding]:
    for path, tree in trees.items():
        folder = path.split("/", 1)[0]
        locale = folder if folder in locales_in(source) else manifest.default_locale
        for lint in lint_file(path, source.files[path], tree, locale):
            yield Finding("warning", lint.code, path, lint.line, lint.message, lint.mend)


def _samples(
    source: TemplateSource, manifest: Manifest, samples: list[Sample], known: set[Finding]
) -> Iterator[Finding]:
    """What the rendered examples show. A variable that is known to be undeclared is not reported a second time."""
    undeclared = any(finding.code == "undefined-variable" for finding in known)
    for sample in samples:
        letter = f"the letter in {sample.locale} with {'only what is required' if sample.barest else 'every example'}"
        subject = part_path(source, sample.locale, SUBJECT) or SUBJECT
        if sample.problem:
            if not (undeclared and sample.problem.startswith("undefined variable")):
                yield _failed(sample, letter)
        elif sample.subject > SUBJECT_SHOWN:
            level: Literal["error", "warning"] = "error" if sample.subject > SUBJECT_MAX else "warning"
            message = (
                f"{letter} has a subject of {sample.subject} characters; mailboxes show fewer than {SUBJECT_SHOWN}"
            )
            yield Finding(level, "long-subject", subject, 0, message, "shorten it")
        if manifest.priority == "bulk" and not sample.problem:
            for part, name, size in (("text", TEXT, sample.text), ("html", HTML, sample.html)):
                path = part_path(source, sample.locale, name)
                if path and size and part not in sample.links_out and _no_way_out(path, _NO_WAY_OUT) not in known:
                    yield _no_way_out(path, f"{letter} has no link to unsubscribe in its {part} part")


def _failed(sample: Sample, letter: str) -> Finding:
    place = _PLACE.search(sample.problem)
    problem = sample.problem[: place.start()] if place else sample.problem
    optional = sample.barest and problem.startswith("undefined variable")
    mend = "give it a default, or test it with `is defined`" if optional else "mend the template or its examples"
    path, line = (place["path"], int(place["line"])) if place else ("", 0)
    return Finding("error", "sample-failed", path, line, f"{letter} cannot be made: {problem}", mend)
