"""Triggers on the Pub/Sub emulator, published as bad publishers do: several times, shuffled, late."""

import json
import os
import random
from collections.abc import Mapping
from typing import Protocol

PROJECT = "projects/sendonce-chaos"
CALL_S = 60.0
ACK_DEADLINE_S = 10
COPIES = (2, 5)


class Traffic(Protocol):
    """One kind of trigger: what a run publishes of it, and what must have become of it."""

    def bodies(self, number: int) -> list[bytes]:
        """What is published when the run comes to its campaign number `number`; each may come again at any time."""

    def lost(self, published: Mapping[bytes, int], states: Mapping[str, str]) -> list[str]:
        """Which of the published bodies changed nothing in the store, in words."""


class Starts:
    """A `start` for each campaign."""

    def __init__(self, campaigns: list[str]) -> None:
        self._campaigns = campaigns

    def bodies(self, number: int) -> list[bytes]:
        return [json.dumps({"v": 1, "type": "start", "campaign_id": self._campaigns[number]}).encode()]

    def lost(self, published: Mapping[bytes, int], states: Mapping[str, str]) -> list[str]:
        started = sorted({json.loads(body)["campaign_id"] for body in published})
        return [
            f"the start of {campaign} was published, and it is {states.get(campaign, 'gone')}"
            for campaign in started
            if states.get(campaign, "gone") in ("loading", "ready", "gone")
        ]


class Publisher:
    """A topic with one subscription, and what was published on it.

    Every body comes several times: some copies at once, in a random order with earlier ones, others whenever `again` is
    called.
    """

    def __init__(self, address: str, traffic: Traffic, chance: random.Random) -> None:
        from google.cloud import pubsub_v1

        os.environ["PUBSUB_EMULATOR_HOST"] = address
        self._topic = f"{PROJECT}/topics/triggers"
        self.subscription = f"{PROJECT}/subscriptions/triggers"
        self._publisher = pubsub_v1.PublisherClient()
        self._subscriber = pubsub_v1.SubscriberClient()
        self._publisher.create_topic(name=self._topic)
        self._subscriber.create_subscription(
            request={"name": self.subscription, "topic": self._topic, "ack_deadline_seconds": ACK_DEADLINE_S}
        )
        self._traffic = traffic
        self._chance = chance
        self.published: dict[bytes, int] = {}

    def release(self, number: int) -> None:
        """Publish what belongs to campaign number `number`, several times, among copies of earlier messages."""
        bodies = [body for body in self._traffic.bodies(number) for _ in range(self._chance.randint(*COPIES))]
        bodies += self._chance.sample(sorted(self.published), min(2, len(self.published)))
        self._chance.shuffle(bodies)
        self._publish(bodies)

    def again(self) -> None:
        """Publish something once more that was published before."""
        if self.published:
            self._publish([self._chance.choice(sorted(self.published))])

    def _publish(self, bodies: list[bytes]) -> None:
        for sent in [self._publisher.publish(self._topic, body) for body in bodies]:
            sent.result(CALL_S)
        for body in bodies:
            self.published[body] = self.published.get(body, 0) + 1

    def problems(self, states: Mapping[str, str]) -> list[str]:
        """Nothing acked is lost, and at the end nothing is left unacknowledged."""
        return [*self._traffic.lost(self.published, states), *self._left()]

    def _left(self) -> list[str]:
        """What the subscription still holds once nobody reads it. A message that a killed process had pulled comes
        back at its ack deadline."""
        answer = self._subscriber.pull(subscription=self.subscription, max_messages=100, return_immediately=True)
        return [f"the subscription still holds {message.message.message_id}" for message in answer.received_messages]
