"""Tools of other languages that the examples need. Tests use what is installed and install nothing."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples" / "publish"
SERVERS = Path(__file__).resolve().parent / "providers" / "node"


@cache
def missing(name: str) -> str:
    """What keeps an example in `gcloud`, `node`, `go`, or `smtp-server` from running here; empty if nothing."""
    if name == "smtp-server":
        if shutil.which("node") is None:
            return "node"
        installed = (SERVERS / "node_modules" / name / "package.json").is_file()
        return "" if installed else "smtp-server for node (npm install in tests/providers/node)"
    if shutil.which(name) is None:
        return name
    if (
        name == "node"
        and not (EXAMPLES / "node" / "node_modules" / "@google-cloud" / "pubsub" / "package.json").is_file()
    ):
        return "@google-cloud/pubsub for node (npm install in examples/publish/node)"
    if name == "go" and not _go_libraries():
        return "cloud.google.com/go/pubsub for go (go mod download in examples/publish/go)"
    return ""


def _go_libraries() -> bool:
    """Whether all modules lie in go's cache; asked without a network."""
    asked = subprocess.run(
        ["go", "list", "-deps", "."],
        cwd=EXAMPLES / "go",
        env={**os.environ, "GOPROXY": "off", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local"},
        capture_output=True,
        timeout=60,
        check=False,
    )
    return asked.returncode == 0
