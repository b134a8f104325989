"""Sendonce as a user has it: a wheel, installed somewhere else, with other people's packages around it."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("pipelines", "schemas", "sendonce", "templates", "transforms")


def run(*command: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing old in the checkout's build/ can slip in."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in (*PACKAGES, "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    out = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, source, cwd=source)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run(
        *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"),
        *("--target", folder, wheel),
        cwd=folder,
    )
    return folder


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """Another project's folder: it has packages of our names, which must not be imported."""
    folder = tmp_path / "foreign"
    for name in ("pipelines", "schemas", "templates", "transforms"):
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ImportError('the foreign {name} was imported')\n")
    return folder


def test_the_wheel_holds_our_packages_and_templates_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == set(PACKAGES)
    for path in (ROOT / "templates").rglob("*"):
        if path.suffix in {".j2", ".yaml"}:
            assert str(path.relative_to(ROOT)) in names
    for path in (ROOT / "schemas").rglob("*.json"):
        assert str(path.relative_to(ROOT)) in names


def test_a_foreign_schemas_on_the_path_is_not_taken_for_ours(site: Path, foreign: Path) -> None:
    path = os.pathsep.join([str(foreign), str(site)])
    done = run(sys.executable, site / "bin" / "sendonce", "--version", cwd=foreign, PYTHONPATH=path)
    assert "0.1.0" in done.stdout
    run(sys.executable, site / "bin" / "sendonce", "init", cwd=foreign, PYTHONPATH=path)
    run(sys.executable, site / "bin" / "sendonce", "list", cwd=foreign, PYTHONPATH=path)


def test_the_whole_pipeline_runs_from_the_wheel_beside_foreign_packages(site: Path, foreign: Path) -> None:
    path = os.pathsep.join([str(foreign), str(site)])
    done = run(
        *(sys.executable, site / "bin" / "sendonce", "demo", "--recipients", "50", "--json"),
        cwd=foreign,
        PYTHONPATH=path,
    )
    assert '"unaccounted":' in done.stdout.splitlines()[-1]


def test_an_importing_program_keeps_its_own_schemas(site: Path, tmp_path: Path) -> None:
    (tmp_path / "schemas.py").write_text("theirs = True\n")
    path = os.pathsep.join([str(tmp_path), str(site)])
    run(sys.executable, "-c", "import sendonce, schemas; assert schemas.theirs", cwd=tmp_path, PYTHONPATH=path)
