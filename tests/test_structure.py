"""The shape of the repository: what ships, what is pinned, what import-linter watches."""

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
LOCKS = sorted((ROOT / "requirements").glob("*.lock"))
SHIPPED = ("pipelines", "schemas", "sendonce", "templates", "transforms")


def pinned(requirements: list[object]) -> dict[str, str]:
    """Name (lower case, no extras) to version; fails for anything that is not an exact pin."""
    found = {}
    for requirement in requirements:
        if isinstance(requirement, dict):  # an included group
            continue
        match = re.fullmatch(r"([A-Za-z0-9-]+)(?:\[[a-z,]+\])?==([0-9][0-9a-z.]*)", str(requirement))
        assert match, f"not an exact pin: {requirement}"
        found[match[1].lower()] = match[2]
    return found


def locked(lock: Path) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;]+)", lock.read_text(), re.MULTILINE))


def everything_pinned() -> dict[str, str]:
    lists = [PROJECT["project"]["dependencies"], *EXTRAS.values(), *PROJECT["dependency-groups"].values()]
    return {name: version for requirements in lists for name, version in pinned(requirements).items()}


def test_every_package_in_the_tree_ships_and_nothing_else_does() -> None:
    in_tree = {
        ".".join(init.parent.relative_to(ROOT).parts) for name in SHIPPED for init in (ROOT / name).rglob("__init__.py")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == in_tree


def test_the_locks_hold_exactly_what_pyproject_pins() -> None:
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    wanted = {
        "local.lock": [*project["dependencies"], *groups["build"]],
        "dev.lock": [*project["dependencies"], *groups["build"], *groups["dev"]],
        "cloud.lock": [*project["dependencies"], *groups["build"], *chain(*EXTRAS.values())],
    }
    assert [lock.name for lock in LOCKS] == sorted(wanted)
    for name, requirements in wanted.items():
        found = locked(ROOT / "requirements" / name)
        differing = {
            package: (version, found.get(package))
            for package, version in pinned(requirements).items()
            if found.get(package) != version
        }
        assert not differing, f"requirements/{name} is behind pyproject.toml (make lock): {differing}"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_has_hashes_and_names_no_index(lock: Path) -> None:
    text = lock.read_text()
    assert "--hash=sha256:" in text
    assert not re.search(r"^\s*-|://", text.replace("    --hash", ""), re.MULTILINE)


def test_one_set_of_versions_fits_all_locks() -> None:
    versions: dict[str, set[str]] = {}
    for lock in LOCKS:
        for package, version in locked(lock).items():
            versions.setdefault(package, set()).add(version)
    assert {package: found for package, found in versions.items() if len(found) > 1} == {}


def test_every_dependency_has_its_reason_written_down() -> None:
    page = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text()
    explained = set(re.findall(r"^\| `([a-z0-9-]+)", page, re.MULTILINE))
    assert explained == set(everything_pinned())


def test_import_linter_watches_every_module_of_the_core() -> None:
    layers = next(c for c in PROJECT["tool"]["importlinter"]["contracts"] if c["id"] == "layers")["layers"]
    watched = {name.strip(" ()") for layer in layers for name in layer.split(":")}
    children = {
        f"sendonce.{path.stem}"
        for path in (ROOT / "sendonce").iterdir()
        if (path.suffix == ".py" and not path.stem.startswith("__")) or (path / "__init__.py").exists()
    }
    assert children <= watched, f"not in the layers of pyproject.toml: {sorted(children - watched)}"


def test_no_module_asks_for_future_annotations_where_beam_reads_them() -> None:
    """Ruff bans it too; this holds where somebody adds a noqa."""
    found = [
        str(path.relative_to(ROOT))
        for name in ("schemas", "transforms", "pipelines")
        for path in (ROOT / name).rglob("*.py")
        if "from __future__ import annotations" in path.read_text()
    ]
    assert found == []


def imported_by_shipped_code() -> set[str]:
    """Distribution names (lower case) behind every import in the packages that ship, also those inside functions."""
    distributions = importlib.metadata.packages_distributions()
    names = {
        name
        for folder in SHIPPED
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in imported_names(node)
    }
    ours = set(SHIPPED) | set(sys.stdlib_module_names)
    others = {name for name in names if name.split(".")[0] not in ours}
    return {_distribution(name, distributions) for name in others}


# Many distributions share the package `google`.
GOOGLE = {
    "google.api_core": "google-api-core",
    "google.auth": "google-auth",
    "google.cloud.pubsub": "google-cloud-pubsub",
    "google.cloud.spanner": "google-cloud-spanner",
}


def _distribution(name: str, distributions: Mapping[str, list[str]]) -> str:
    name = {"google.cloud": "google.cloud.spanner"}.get(name, name)  # `from google.cloud import spanner`
    for start, distribution in GOOGLE.items():
        if name.startswith(start):
            return distribution
    top = name.split(".")[0]
    return distributions.get(top, [top])[0].lower()


def imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


def test_what_the_code_imports_is_what_the_project_asks_for() -> None:
    """A package that comes along with another today may not tomorrow; one that nobody imports is a burden."""
    wanted = pinned(PROJECT["project"]["dependencies"]).keys() - {"tzdata"}  # data, read by the standard library
    # Beam's own extra, and Pub/Sub as long as nothing reads it.
    cloud = pinned(EXTRAS["gcp"]).keys() - {"apache-beam", "google-cloud-pubsub"}
    adapters = pinned([pin for extra in ("sendgrid", "ses", "smtp") for pin in EXTRAS[extra]]).keys()
    assert imported_by_shipped_code() == wanted | adapters | cloud


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    pages = {path.name for path in folder.glob("0*.md")}
    assert set(re.findall(r"\]\((0[^)]+\.md)\)", (folder / "README.md").read_text())) == pages
