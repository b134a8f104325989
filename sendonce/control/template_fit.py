"""What a list gives, against what a template asks for: columns for nothing, variables from nowhere, languages."""

import difflib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

from sendonce.control.load_faults import LoadFault
from sendonce.control.row_checks import RowChecks
from sendonce.control.staging import StagedRow
from sendonce.rendering.catalogue import TemplateSource, manifest_of, speaks
from sendonce.rendering.check import names_used

# Formats whose rows all have the same columns: what the first rows lack, all lack.
_TABLES: Final = ("csv", "parquet")


class TemplateFit:
    """A template as a load meets it. The template must be sound (`compile_template`).

    default_language: recipients by locale, of those whose locales the template does not speak: their letters are in its
    default language.
    """

    def __init__(self, source: TemplateSource) -> None:
        self._source = source
        self._used = names_used(source)
        variables = manifest_of(source).variables
        used = self._used or set()
        self._required = sorted(name for name, variable in variables.items() if variable.required and name in used)
        self._locales: Counter[str] = Counter()

    def check_columns(self, checks: RowChecks, layout: str, place: str) -> None:
        """LoadFault if no row of a table can have a variable that every letter needs: no column gives it."""
        if layout not in _TABLES or checks.has_objects:
            return
        for name in self._required:
            if name not in checks.columns:
                close = _closest(name, checks.columns)
                mend = (
                    f"--column {name}={close} takes it from {close}"
                    if close
                    else f"add a column {name}, name another with --column {name}=YOUR_COLUMN, or give the variable a "
                    "default in template.yaml"
                )
                raise LoadFault(f"no column gives {name}, which template {self._source.name} requires", place, mend)

    def unused_columns(self, columns: Collection[str]) -> list[str]:
        """Columns that the template uses nowhere. None can be told where it reads `vars` as a whole."""
        return [] if self._used is None else sorted(set(columns) - self._used)

    def missing_variables(self, given: Collection[str]) -> list[str]:
        """Required variables that no row at all gives: nobody would get a letter."""
        return [name for name in self._required if name not in given]

    def counted(self, rows: Iterable[StagedRow]) -> Iterator[StagedRow]:
        """The same rows, their locales counted on the way."""
        count = self._locales
        for row in rows:
            count[row[3]] += 1
            yield row

    @property
    def default_language(self) -> dict[str, int]:
        return {name: times for name, times in self._locales.most_common() if not speaks(self._source, name)}


def _closest(name: str, columns: Collection[str]) -> str:
    plain = {column.casefold(): column for column in columns}
    close = difflib.get_close_matches(name.casefold(), plain, n=1)
    return plain[close[0]] if close else ""
