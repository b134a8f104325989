"""Delivery events on the Spanner emulator: each once, known by its attempt, and proof of its own letter."""

import pytest

from schemas.tables import DeliveryEvent
from sendonce.control.events import Recorded, record_events
from tests.delivery.test_aside_on_spanner import OnSpanner
from tests.delivery.test_evidence import STRANGE, about, decisions, lost
from tests.emulated import Emulator

pytest.importorskip("google.cloud.spanner", reason="google-cloud-spanner is not installed")


def test_events_settle_letter_by_letter(spanner: Emulator) -> None:
    world = OnSpanner()
    attempt = lost(world, 3)
    nameless = about(world, attempt, 1, campaign_id=None, batch_no=None)
    strangers = [about(world, STRANGE, 1, event_id="e1"), about(world, attempt, 1, event_id="e2", campaign_id="theirs")]
    events = [about(world, attempt, 2), nameless, *strangers]

    assert record_events(world.store, events) == Recorded(added=2, unknown_campaign=1, unknown_attempt=1)
    assert record_events(world.store, events) == Recorded(already=2, unknown_campaign=1, unknown_attempt=1)

    world.sweep()
    world.sweep()
    assert (world.kinds(), world.batch().state) == ("aad", "held")
    assert decisions(world) == [("evidence", "provider", [0, 1]), ("hold", "policy", [2])]
    late = about(world, attempt, 3, provider="sendgrid", event_id="whole", message_id=None, whole=True)
    assert record_events(world.store, [late]) == Recorded(added=1)
    world.sweep()
    world.sweep()
    assert (world.kinds(), world.campaign_row().state) == ("aaa", "completed")
    rows = world.store.read(lambda reader: reader.scan(DeliveryEvent))
    assert all(row.received_at.year < 9999 for row in rows)
