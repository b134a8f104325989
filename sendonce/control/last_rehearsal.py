"""What the last rehearsal of a campaign found, kept with the campaign for whoever starts it."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Optional

import orjson

from schemas.tables import Campaign
from sendonce.moments import utc_text


@dataclass(frozen=True)
class LastRehearsal:
    """When it ended, how many letters could be made, and how many recipients would get none."""

    at: datetime
    rendered: int
    failed: int

    def as_json(self) -> dict[str, Any]:
        return {"at": utc_text(self.at), "rendered": self.rendered, "failed": self.failed}


def with_rehearsal(campaign: Campaign, found: LastRehearsal) -> Campaign:
    """The campaign's row with the rehearsal in its options, in place of an earlier one."""
    options = {**orjson.loads(campaign.options), "rehearsal": found.as_json()}
    return replace(campaign, options=orjson.dumps(options, option=orjson.OPT_SORT_KEYS).decode())


def last_rehearsal(campaign: Campaign) -> Optional[LastRehearsal]:
    """None for a campaign that nobody rehearsed to the end."""
    kept = orjson.loads(campaign.options).get("rehearsal")
    return LastRehearsal(datetime.fromisoformat(kept["at"]), kept["rendered"], kept["failed"]) if kept else None
