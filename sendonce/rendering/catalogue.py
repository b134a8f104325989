"""Templates as content: read from folders, named by a hash, kept in the store, found by name and locale."""

import hashlib
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Final

import orjson

from schemas.tables import TemplateContent
from sendonce.rendering.faults import TemplateFault
from sendonce.rendering.manifest import (
    LOCALE,
    MANIFEST,
    Manifest,
    Variable,
    example_variables,
    parse_manifest,
    variables_for,
)
from sendonce.rendering.values import VariableFault

__all__ = [
    "PARTS",
    "Manifest",
    "TemplateFault",
    "TemplateSource",
    "Variable",
    "VariableFault",
    "example_variables",
    "find_template",
    "from_row",
    "locales_in",
    "manifest_of",
    "part_path",
    "read_folder",
    "source_of",
    "text_locale",
    "to_row",
    "variables_for",
]

SUBJECT: Final = "subject.j2"
HTML: Final = "body.html.j2"
TEXT: Final = "body.txt.j2"
PARTS: Final = (SUBJECT, HTML, TEXT)

# Generous for letters, small beside the store's 10 MiB column: a folder that passes them is no template.
MAX_FILES: Final = 200
MAX_FILE_BYTES: Final = 512 * 1024
MAX_BYTES: Final = 4 * 1024 * 1024

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_LOCALE: Final = re.compile(LOCALE)


@dataclass(frozen=True)
class TemplateSource:
    """A template's files by path (`/` between folders, relative to its own) and the hash that pins them.

    Equal and hashed by name and content hash, so it keys caches cheaply.
    """

    name: str
    files: Mapping[str, str] = field(compare=False, repr=False)
    template_hash: str


def source_of(name: str, files: Mapping[str, str]) -> TemplateSource:
    """A template from its files. The hash is SHA-256 over the name and the sorted paths and texts, each with its

    length before it, so that no two templates share an input. The name is part of it: a copy under another name
    is another template.
    """
    digest = hashlib.sha256()
    for piece in (name, *(piece for path in sorted(files) for piece in (path, files[path]))):
        raw = piece.encode()
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return TemplateSource(name, dict(sorted(files.items())), digest.hexdigest())


def read_folder(path: Path | str) -> TemplateSource:
    """The template in a folder, named after it: `template.yaml` and every `*.j2` below it; other files are ignored.

    UTF-8, a byte order mark dropped, line ends made LF: the hash does not depend on the editor. TemplateFault for a
    folder that is missing, has no manifest, leads outside itself, or is too big to be a template.
    """
    folder = Path(path)
    name = folder.resolve().name
    if not folder.is_dir():
        raise TemplateFault(str(path), "", 0, "no such folder", "name a folder that holds template.yaml")
    if not _NAME.fullmatch(name):
        mend = "use up to 64 letters, digits, dots, dashes, underscores"
        raise TemplateFault(str(path), "", 0, "the folder's name is no template name", mend)
    files: dict[str, str] = {}
    total = 0
    for file in _template_files(folder):
        relative = file.relative_to(folder).as_posix()
        if not file.resolve().is_relative_to(folder.resolve()):
            raise TemplateFault(name, relative, 0, "leads outside the template's folder", "put the file itself there")
        files[relative] = _read(name, relative, file)
        total += len(files[relative])
        if len(files) > MAX_FILES or total > MAX_BYTES:
            raise TemplateFault(
                name, "", 0, f"more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB", "name the folder of one template"
            )
    if MANIFEST not in files:
        mend = f"write {folder / MANIFEST}, beginning with `priority: bulk`"
        raise TemplateFault(name, MANIFEST, 0, "no such file", mend)
    return source_of(name, files)


def _template_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith((".", "__")) for part in path.relative_to(folder).parts)
        if not hidden and (path.suffix == ".j2" or path == folder / MANIFEST) and path.is_file():
            yield path


def _read(name: str, relative: str, file: Path) -> str:
    try:
        with file.open("rb") as handle:
            raw = handle.read(MAX_FILE_BYTES + 1)
    except OSError as fault:
        raise TemplateFault(name, relative, 0, f"cannot be read ({fault.strerror})", "check its permissions") from None
    if len(raw) > MAX_FILE_BYTES:
        raise TemplateFault(name, relative, 0, f"larger than {MAX_FILE_BYTES >> 10} KiB", "no mailbox shows that much")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as fault:
        line = raw[: fault.start].count(b"\n") + 1
        raise TemplateFault(name, relative, line, "not UTF-8 text", "save it as UTF-8") from None
    if "\x00" in text:
        raise TemplateFault(name, relative, text[: text.index("\x00")].count("\n") + 1, "holds a NUL", "remove it")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def shipped_folder() -> Path:
    """Where the templates that ship lie: beside the package, in a checkout as when installed.

    Found from our own package, not by importing `templates`: that name may be anybody's.
    """
    with resources.as_file(resources.files("sendonce")) as package:
        return package.parent / "templates"


def find_template(name_or_path: str, folders: Sequence[Path | str] = ()) -> TemplateSource:
    """A template by path (anything with a `/`) or by name: the project's folders in order, then those that ship.

    TemplateFault for an unknown one lists those that exist.
    """
    if "/" in name_or_path or name_or_path in (".", ".."):
        return read_folder(name_or_path)
    for place in [*(Path(folder) for folder in folders), shipped_folder()]:
        if _NAME.fullmatch(name_or_path) and (place / name_or_path).is_dir():
            return read_folder(place / name_or_path)
    known = ", ".join(template_names(folders)) or "none"
    raise TemplateFault(name_or_path, "", 0, "no such template", f"name one of {known}, or a folder by its path")


def template_names(folders: Sequence[Path | str] = ()) -> list[str]:
    """The names that `find_template` knows, sorted."""
    places = [*(Path(folder) for folder in folders), shipped_folder()]
    return sorted({manifest.parent.name for place in places for manifest in place.glob(f"*/{MANIFEST}")})


def to_row(source: TemplateSource, now: datetime, by: str) -> TemplateContent:
    """The store's row of a template."""
    body = zlib.compress(orjson.dumps(dict(source.files), option=orjson.OPT_SORT_KEYS))
    return TemplateContent(source.template_hash, source.name, body, now, by)


def from_row(row: TemplateContent) -> TemplateSource:
    """A template from the store. TemplateFault if its content is not what its hash says."""
    try:
        files = orjson.loads(zlib.decompress(row.files))
        source = source_of(row.name, files)
    except (zlib.error, ValueError, AttributeError, TypeError):
        source = None
    if source is None or source.template_hash != row.template_hash:
        raise TemplateFault(row.name, "", 0, "the stored content does not match its hash", "push the template again")
    return source


@lru_cache(maxsize=256)
def manifest_of(source: TemplateSource) -> Manifest:
    """The template's manifest. TemplateFault with file and line if it is missing or wrong."""
    if MANIFEST not in source.files:
        raise TemplateFault(source.name, MANIFEST, 0, "no such file", "write one, beginning with `priority: bulk`")
    return parse_manifest(source.name, source.files[MANIFEST])


@lru_cache(maxsize=4096)
def part_path(source: TemplateSource, locale: str, part: str) -> str | None:
    """The file of one part for a locale: pt-BR, then pt, then the default; None if the template has no such part."""
    default = manifest_of(source).default_locale
    folders = [*_fallbacks(locale), "", *_fallbacks(default)]
    paths = (f"{folder}/{part}" if folder else part for folder in folders)
    return next((path for path in paths if path in source.files), None)


@lru_cache(maxsize=4096)
def text_locale(source: TemplateSource, locale: str) -> str:
    """The locale in which a letter formats dates and numbers: the recipient's, where the template speaks that

    language; else the default's. So nobody finds a French date in an English sentence.
    """
    manifest = manifest_of(source)
    spoken = {_fallbacks(name)[-1] for name in (*manifest.locales, *locales_in(source))}
    chain = _fallbacks(locale)
    return chain[0] if chain and chain[-1] in spoken else manifest.default_locale


@lru_cache(maxsize=4096)
def speaks(source: TemplateSource, locale: str) -> bool:
    """Whether letters for a locale are in its language: the default's, or one for which the template has a part."""
    default = manifest_of(source).default_locale
    if _fallbacks(locale)[-1:] == _fallbacks(default)[-1:]:
        return True
    return any(part_path(source, locale, part) != part_path(source, default, part) for part in PARTS)


def locales_in(source: TemplateSource) -> list[str]:
    """The locales that have a folder with at least one part, sorted."""
    folders = {path.split("/", 1)[0] for path in source.files if path.count("/") == 1 and path.endswith(PARTS)}
    return sorted(folder for folder in folders if _LOCALE.fullmatch(folder))


def _fallbacks(locale: str) -> list[str]:
    """`zh_hant_tw` → zh-Hant-TW, zh-Hant, zh; nothing for text that is no locale."""
    parts = locale.replace("_", "-").split("-")
    spelled = [parts[0].lower(), *(part.title() if len(part) == 4 else part.upper() for part in parts[1:])]
    name = "-".join(spelled)
    if not _LOCALE.fullmatch(name):
        return _fallbacks(parts[0]) if len(parts) > 1 else []
    return ["-".join(spelled[:length]) for length in range(len(spelled), 0, -1)]
