#!/usr/bin/env bash
# Compiles the lock files from pyproject.toml with uv: every package with its version and hashes, for Python
# 3.11 and 3.12 on any platform. Run it as `make lock` after changing a dependency. Versions stay unless
# pyproject.toml asks for others; UPGRADE=--upgrade takes the newest of everything that is not pinned there.
set -euo pipefail

python=$1
cd "$(dirname "$0")/.."
"$python" -m pip install --quiet uv==0.13.9

compile() {
  local out=$1
  shift
  echo "== $out"
  "$python" -m uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
    --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" ${UPGRADE:-} "$@" --output-file "$out"
}

compile requirements/dev.lock --group dev
compile requirements/local.lock --group build --constraint requirements/dev.lock
compile requirements/cloud.lock --group build --all-extras --constraint requirements/dev.lock
