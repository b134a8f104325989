"""A Pub/Sub topic that notices go to: publishing to it, and saying in our words what keeps us from it.

Google's client is an extra (`gcp`), so it is imported where a topic is configured and not before.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent import futures
from typing import Any, Final, NamedTuple

# One attempt; whoever publishes notices tries again by itself, and meanwhile others may take them.
CALL_S: Final = 10.0
AT_ONCE: Final = 200
# Notices are published in lists: all of a list are there when the first is, so there is nothing to wait for.
_LINGER_S: Final = 0.005


class Answer(NamedTuple):
    """Whether Pub/Sub took a message, by place, and what is to mend; empty where it took all."""

    taken: list[bool]
    problem: str


class TopicClient:
    """Publishes to any topic. What is wrong is an answer, never an exception: a job goes on without its notices."""

    def __init__(self) -> None:
        self._client: Any = None

    def publish(self, topic: str, messages: Sequence[tuple[bytes, Mapping[str, str]]]) -> Answer:
        """Publish each once and wait. What has no answer in time counts as not taken, though it may have been."""
        try:
            client = self._open()
            sent = [
                client.publish(topic, data, retry=None, timeout=CALL_S, **attributes) for data, attributes in messages
            ]
        except Exception as fault:
            return Answer([False] * len(messages), problem_of(topic, fault))
        futures.wait(sent, CALL_S + 2.0)
        faults = [_fault_of(one) for one in sent]
        first = next((fault for fault in faults if fault is not None), None)
        return Answer([fault is None for fault in faults], problem_of(topic, first) if first is not None else "")

    def close(self) -> None:
        """End its threads and its connection."""
        if self._client is not None:
            self._client.stop()
            self._client.transport.close()
            self._client = None

    def _open(self) -> Any:
        if self._client is None:
            from google.cloud import pubsub_v1

            settings = pubsub_v1.types.BatchSettings(max_messages=AT_ONCE, max_latency=_LINGER_S)
            self._client = pubsub_v1.PublisherClient(batch_settings=settings)
        return self._client


def _fault_of(sent: "futures.Future[str]") -> BaseException | None:
    if not sent.done():
        return TimeoutError()
    return sent.exception()


def check_topic(topic: str) -> str:
    """What keeps this machine from publishing to a topic, and the mend; empty if nothing does. Publishes nothing."""
    try:
        from google.api_core import exceptions as google
        from google.cloud import pubsub_v1

        client = pubsub_v1.PublisherClient()
        try:
            request = {"resource": topic, "permissions": ["pubsub.topics.publish"]}
            try:
                if client.test_iam_permissions(request=request, retry=None, timeout=CALL_S).permissions:
                    return ""
                allowed = False
            except google.MethodNotImplemented:  # the emulator lets everybody do everything
                allowed = True
            # Without the permission and without the topic the answer above is the same.
            client.get_topic(topic=topic, retry=None, timeout=CALL_S)
            return "" if allowed else _forbidden(topic)
        finally:
            client.transport.close()
    except Exception as fault:
        return problem_of(topic, fault)


def problem_of(topic: str, fault: BaseException) -> str:
    """A fault in our words, with its mend after a semicolon. The fault's own text may hold parts of messages."""
    if isinstance(fault, ImportError):
        return f"the package {fault.name} is not installed; install sendonce[gcp] (`make cloud`)"
    kind = type(fault).__name__
    if kind == "NotFound":
        project, _, name = topic.split("/", 1)[1].partition("/topics/")
        return f"there is no topic {topic}; `gcloud pubsub topics create {name} --project {project}` makes it"
    if kind in ("PermissionDenied", "Forbidden", "Unauthenticated"):
        return _forbidden(topic)
    if kind in ("DefaultCredentialsError", "RefreshError"):
        return "no credentials for Pub/Sub; run `gcloud auth application-default login`, or set PUBSUB_EMULATOR_HOST"
    where = os.environ.get("PUBSUB_EMULATOR_HOST", "Pub/Sub")
    return f"{where} did not take messages for {topic} ({kind}); is it there, and is the way free?"


def _forbidden(topic: str) -> str:
    return f"{topic} may not be published to; grant roles/pubsub.publisher on it"
