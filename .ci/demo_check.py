"""Reads the output of two runs of `sendonce demo --json`: the counts add up, and the second run sent nothing."""

import json
import sys
from pathlib import Path

OUTCOMES = ("accepted", "refused", "skipped", "suppressed", "cancelled", "assumed", "in_doubt", "unaccounted")

first, second = (json.loads(Path(name).read_text().splitlines()[-1]) for name in sys.argv[1:])
counted = sum(first[name] for name in OUTCOMES)
problems = [
    problem
    for problem, wrong in (
        (f"{first['recipients']} recipients, but {counted} outcomes", counted != first["recipients"]),
        ("nobody was sent a letter", first["accepted"] == 0),
        (f"{first['duplicates']} letters were sent twice", first["duplicates"] != 0),
        (f"{first['unaccounted']} recipients have no outcome", first["unaccounted"] != 0),
        ("the second run changed the counts", any(first[name] != second[name] for name in OUTCOMES)),
        (f"the second run sent {second['duplicates']} letters again", second["duplicates"] != 0),
    )
    if wrong
]
print("\n".join(problems) or "the outcomes add up; the second run sent nothing")
sys.exit(bool(problems))
