#!/usr/bin/env bash
# Installs the lock file $2, then Sendonce itself from this folder (editable), with the interpreter $1.
set -euo pipefail

python=$1 lock=$2
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore

echo "== packages from $lock (the first time takes a minute or two)"
"$python" -m pip install --quiet --require-hashes --requirement "$lock"
"$python" -m pip install --quiet --no-deps --no-build-isolation --editable .
