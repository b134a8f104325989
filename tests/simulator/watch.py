"""What a simulation sees while it runs, and the records do not tell afterwards."""

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

from schemas.tables import Batch, Campaign, Switch
from sendonce.delivery import health
from sendonce.delivery.terms import Terms, batch_key
from sendonce.stores.base import Reader, Store
from tests.simulator.campaign import CAMPAIGN


@dataclass
class Stopped:
    """Nothing of the campaign was to begin after `since`, up to `until` at least: then it was last seen so."""

    why: str
    since: datetime
    until: datetime


class Watch:
    """late: attempts that stood still between their last check and the provider; late_places: where its log has what
    came of them. unfenced: requests that began after others took their batch. beside_probe: requests that were granted
    while another one probed an open breaker.
    """

    def __init__(self, store: Store, terms: Terms) -> None:
        self._store = store
        self._terms = terms
        self.late: set[str] = set()
        self.late_places: set[str] = set()
        self.unfenced: list[str] = []
        self.probes = 0
        self.beside_probe: list[str] = []
        self.stops: list[Stopped] = []

    def request_begins(self, attempt_id: str, batch_no: int, *, by_own_clock: bool) -> None:
        """by_own_clock: the store's may have jumped past the end of a lease: that makes a doubt, no second request."""

        def look(reader: Reader) -> tuple[Batch | None, Switch | None]:
            return reader.get(Batch, *batch_key(CAMPAIGN, batch_no)), reader.get(Switch, "sender:fake")

        batch, switch = self._store.read(look)
        if batch is None or (batch.state, batch.attempt_id) != ("sending", attempt_id):
            if not by_own_clock:
                self.unfenced.append(attempt_id)
        elif switch is not None and switch.kind == health.PROBING and switch.until_at is not None:
            self._check_probe(attempt_id, batch, switch, switch.until_at)

    def _check_probe(self, attempt_id: str, batch: Batch, switch: Switch, until_at: datetime) -> None:
        """While one request probes an open breaker, no other is granted."""
        probing_from = until_at - timedelta(seconds=self._terms.times.lease_s)
        if attempt_id == json.loads(switch.detail)["probe"]:
            self.probes += 1
        elif batch.provider == "fake" and batch.permit_at is not None and batch.permit_at > probing_from:
            self.beside_probe.append(attempt_id)

    def look_at_stops(self) -> None:
        """Note what has stopped or goes on since the last look."""

        def look(reader: Reader) -> tuple[Campaign | None, dict[str, datetime], datetime]:
            switches = {switch.scope: switch.since for switch in reader.scan(Switch) if switch.kind == "stopped"}
            return reader.get(Campaign, CAMPAIGN), switches, reader.now()

        campaign, switches, now = self._store.read(look)
        assert campaign is not None
        stopped = dict(switches)
        if campaign.state in ("paused", "halted", "cancelling", "cancelled"):
            stopped["campaign"] = campaign.changed_at
        known = {(stop.why, stop.since): stop for stop in self.stops}
        for why, since in stopped.items():
            if (why, since) in known:
                known[why, since].until = now
            else:
                self.stops.append(Stopped(why, since, now))
