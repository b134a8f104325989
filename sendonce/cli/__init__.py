"""The command line: the outermost layer.

Importing it puts Sendonce's own packages before any others of the same name. Installed, `schemas`,
`transforms`, `pipelines` and `templates` are generic names: a folder of one of these names on PYTHONPATH or in
the working folder (`python -m`) would otherwise be imported in their place. Only these names are steered,
so nothing of the standard library or of other packages changes; and only the command line does it, so a program
that imports `sendonce.client` keeps its own `schemas`.
"""

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_OURS = frozenset({"pipelines", "schemas", "templates", "transforms"})
_HOME = str(Path(__file__).resolve().parents[2])


class _OwnPackagesFirst(MetaPathFinder):
    """Finds our top-level packages beside `sendonce`, wherever the path would have found others."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in _OURS:
            return None
        return PathFinder.find_spec(fullname, [_HOME], target)


if not any(isinstance(finder, _OwnPackagesFirst) for finder in sys.meta_path):
    sys.meta_path.insert(0, _OwnPackagesFirst())
