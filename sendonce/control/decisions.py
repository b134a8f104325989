"""How a campaign's doubts were settled so far: by proof, by its lane's policy, by people. Each is a row."""

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from schemas.tables import Decision
from sendonce.control.doubts import EVIDENCE, POLICY
from sendonce.stores.base import Reader

# What policies and people decide about doubts.
KINDS: Final = ("hold", "assume", "resend")


@dataclass(frozen=True)
class Decided:
    """requests, recipients: by who (`evidence`, `policy`, `person`) and what (one of KINDS; of evidence itself).

    One request may count several times: held, settled in part by proof, then decided by a person.
    """

    requests: Counter[tuple[str, str]]
    recipients: Counter[tuple[str, str]]

    def as_json(self) -> dict[str, Any]:
        """Every count, also where nothing was decided."""

        def both(who: str, what: str) -> dict[str, int]:
            return {"requests": self.requests[who, what], "recipients": self.recipients[who, what]}

        return {
            "evidence": both(EVIDENCE, EVIDENCE),
            "policy": {kind: both("policy", kind) for kind in KINDS},
            "person": {kind: both("person", kind) for kind in KINDS if kind != "hold"},
        }


def decided(reader: Reader, campaign_id: str) -> Decided:
    """The decisions about a campaign's doubts."""
    found = Decided(Counter(), Counter())
    for row in reader.scan(Decision, campaign_id, index="decisions_by_campaign"):
        if row.kind == EVIDENCE:
            place = (EVIDENCE, EVIDENCE)
        elif row.kind in KINDS and row.batch_no is not None:
            place = ("policy" if row.by == POLICY else "person", row.kind)
        else:
            continue
        found.requests[place] += 1
        found.recipients[place] += int.from_bytes(row.ordinals or b"", "little").bit_count()
    return found
