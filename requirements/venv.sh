#!/usr/bin/env bash
# Makes the environment folder $1 with Python 3.11 (or 3.12, or whatever $PYTHON names).
set -euo pipefail

folder=$1

fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

for python in ${PYTHON:-python3.11 python3.12 python3 python}; do
  if fits "$python"; then
    echo "== environment $folder ($("$python" --version))"
    if "$python" -m venv "$folder"; then
      exit 0
    fi
    echo "Cannot make $folder: $python has no working 'venv' module. On Debian and Ubuntu: apt install python3-venv" >&2
    exit 1
  fi
done

echo "Sendonce needs Python 3.11 or 3.12, and none was found (looked for: ${PYTHON:-python3.11, python3.12, python3})." >&2
echo "Install one, or say where it is: make PYTHON=/path/to/python3.11 ..." >&2
exit 1
