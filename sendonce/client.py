"""For publishers: tell a Sendonce job over Pub/Sub what to do. What became of it, `sendonce.listen` hears.

    from sendonce.client import Publisher

    with Publisher("projects/shop/topics/triggers") as publisher:
        sent = publisher.send(
            "otp",
            [{"recipient_id": "4711", "email": "ann@shop.example", "variables": {"code": "123456"}}],
            idempotency_key="login-4711-20261130-0931",
            priority="critical",
        )
        sent.result()  # Pub/Sub has it

It needs `google-cloud-pubsub` and nothing else: this module imports no other of Sendonce, so that a shop needs neither
Beam nor its dependencies. What a trigger may hold is checked here, before it leaves, by the rules of
`schemas/trigger.schema.json`; no message of an error repeats a value, for values are personal.

Pub/Sub delivers at least once, and so may a caller publish: the idempotency key of a `send`, and the state of the
campaign for the others, make the second time change nothing.
"""

import json
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent import futures
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, Literal, Optional

from google.api_core import exceptions as google
from google.api_core.retry import Retry, if_exception_type
from google.auth.exceptions import TransportError
from google.cloud import pubsub_v1

Priority = Literal["critical", "high", "bulk"]

BODY_BYTES_MAX: Final = 1 << 20
RECIPIENTS_MAX: Final = 100
SEQ_MAX: Final = (1 << 53) - 1
TOPIC: Final = "SENDONCE_TOPIC"

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NAME_RULE: Final = "letters, digits, dots, dashes or underscores, and start with a letter or digit"
# Field of a recipient: fewest and most characters, whether it must be there.
_RECIPIENT: Final[dict[str, tuple[int, int, bool]]] = {
    "recipient_id": (1, 200, True),
    "email": (0, BODY_BYTES_MAX, True),
    "locale": (0, BODY_BYTES_MAX, False),
    "timezone": (0, BODY_BYTES_MAX, False),
}
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
# What passes by itself. ABORTED and the like come from a service that is busy; all of them published nothing for sure
# or perhaps something, which does no harm here.
_PASSES: Final = if_exception_type(
    google.Aborted,
    google.DeadlineExceeded,
    google.InternalServerError,
    google.ResourceExhausted,
    google.ServiceUnavailable,
    google.Unknown,
    TransportError,
)
_CALL_S: Final = 10.0


class InvalidTrigger(ValueError):
    """A trigger that no job would take; nothing was published. `field` says where. No value is in the message."""

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field


class NotPublished(Exception):
    """Pub/Sub did not take a trigger, or did not say so in time. To publish it again, with the same key, is safe."""


class Published:
    """A trigger on its way to Pub/Sub."""

    def __init__(
        self, future: "futures.Future[str]", topic: str, timeout_s: float, forget: "Callable[[Published], None]"
    ) -> None:
        self._future = future
        self._topic = topic
        self._timeout_s = timeout_s
        self._forget = forget

    def done(self) -> bool:
        """Whether it is known what became of it."""
        return self._future.done()

    def result(self, timeout_s: Optional[float] = None) -> str:
        """Wait until Pub/Sub has it; gives the id that Pub/Sub gave the message, which a dead letter names.

        NotPublished if it has not, or not in time: the publisher's `timeout_s` and a little, unless another is given.
        """
        try:
            return str(self._future.result(self._timeout_s + 5.0 if timeout_s is None else timeout_s))
        except futures.TimeoutError:
            raise NotPublished(f"{self._topic} has not answered yet") from None
        except futures.CancelledError:
            raise NotPublished("the trigger was given up before it was published") from None
        except google.NotFound:
            raise NotPublished(f"there is no topic {self._topic}") from None
        except (google.PermissionDenied, google.Unauthenticated) as fault:
            raise NotPublished(
                f"{self._topic} may not be published to ({type(fault).__name__}); grant roles/pubsub.publisher on it"
            ) from None
        except Exception as fault:
            # The fault's own text may hold parts of the message.
            raise NotPublished(f"{self._topic} did not take the trigger: {type(fault).__name__}") from None
        finally:
            if self._future.done():
                self._forget(self)


class Publisher:
    """Publishes triggers to one topic, in batches, from any thread. One for the life of a process is right.

    topic: projects/PROJECT/topics/NAME; else the one that SENDONCE_TOPIC names; ValueError for another form.
    timeout_s: how long a trigger may take with all attempts. Closing it, which leaving its `with` block does, waits
    until all that was published is settled. More than 1,000 triggers under way make the next caller wait.
    """

    def __init__(self, topic: Optional[str] = None, *, timeout_s: float = 60.0) -> None:
        self._topic = topic or os.environ.get(TOPIC, "")
        if not re.fullmatch(r"projects/[^/\s]+/topics/[^/\s]+", self._topic):
            raise ValueError(f"name a topic, as projects/PROJECT/topics/NAME, here or in {TOPIC}")
        self._timeout_s = timeout_s
        self._retry = Retry(predicate=_PASSES, initial=0.1, maximum=5.0, multiplier=2.0, timeout=timeout_s)
        self._client = pubsub_v1.PublisherClient(
            publisher_options=pubsub_v1.types.PublisherOptions(
                flow_control=pubsub_v1.types.PublishFlowControl(
                    message_limit=1000,
                    byte_limit=100 * BODY_BYTES_MAX,
                    limit_exceeded_behavior=pubsub_v1.types.LimitExceededBehavior.BLOCK,
                )
            )
        )
        self._unsettled: set[Published] = set()
        self._changed = threading.Lock()
        self._closed = False

    def send(
        self,
        template: str,
        recipients: Sequence[Mapping[str, Any]],
        *,
        idempotency_key: str,
        priority: Literal["critical", "high"] = "high",
        sender: Optional[str] = None,
        expires_at: Optional[datetime] = None,
    ) -> Published:
        """Send one template to 1 to 100 recipients, once for this key.

        recipients: each has `recipient_id` and `email`, and may have `locale`, `timezone` and `variables` (an object of
        JSON values). expires_at: aware; whoever has not got it by then does not get it.

        idempotency_key: 1 to 200 characters. It is what makes a `send` happen once: the same key with the same content
        is ignored, however often it is published, delivered or retried; with other content it is refused. There is no
        default, for only the caller knows what "the same" is. Take it from the event that the letter tells of
        ("order-4711-paid", "login-4711-20261130-0931"); a random one made here would make each retry of the caller a
        new letter. It comes back with the outcome, so let it hold nothing personal.

        InvalidTrigger if a job would not take it.
        """
        return self._publish(
            send_body(
                template,
                recipients,
                idempotency_key=idempotency_key,
                priority=priority,
                sender=sender,
                expires_at=expires_at,
            ),
            {"type": "send", "priority": priority},
        )

    def start(
        self,
        campaign_id: str,
        seq: Optional[int] = None,
        *,
        at: Optional[datetime] = None,
        priority: Priority = "bulk",
    ) -> Published:
        """Start a loaded campaign.

        at: when, aware, at most 366 days ahead; at once if it is past, or None. Until it has begun, another start with
        a newer `seq` moves it. seq: orders the triggers of one campaign, whatever order they arrive in: one older than
        the last applied is ignored. priority: only the attribute, by which a filter may choose the subscription; any
        job does what a trigger says.
        """
        return self._control("start", campaign_id, seq, priority, at)

    def pause(self, campaign_id: str, seq: Optional[int] = None, *, priority: Priority = "bulk") -> Published:
        """Pause a running campaign; requests in flight end first."""
        return self._control("pause", campaign_id, seq, priority)

    def resume(self, campaign_id: str, seq: Optional[int] = None, *, priority: Priority = "bulk") -> Published:
        """Let a paused or halted campaign go on."""
        return self._control("resume", campaign_id, seq, priority)

    def cancel(self, campaign_id: str, seq: Optional[int] = None, *, priority: Priority = "bulk") -> Published:
        """End a campaign for good; also one that is not loaded yet."""
        return self._control("cancel", campaign_id, seq, priority)

    def close(self) -> None:
        """Publish what is waiting and wait for it. NotPublished with how many failed that nobody asked about."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        self._client.stop()
        with self._changed:
            left = list(self._unsettled)
        failed = 0
        for published in left:
            try:
                published.result()
            except NotPublished:
                failed += 1
        if failed:
            raise NotPublished(f"{failed} of the triggers were not taken by {self._topic}")

    def __enter__(self) -> "Publisher":
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], fault: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        try:
            self.close()
        except NotPublished:
            if fault is None:  # what went wrong first counts
                raise

    def _control(
        self, kind: str, campaign_id: str, seq: Optional[int], priority: str, at: Optional[datetime] = None
    ) -> Published:
        _check(priority in ("critical", "high", "bulk"), "priority", "must be critical, high or bulk")
        return self._publish(control_body(kind, campaign_id, seq, at), {"type": kind, "priority": priority})

    def _publish(self, body: bytes, attributes: dict[str, str]) -> Published:
        if self._closed:
            raise NotPublished("the publisher is closed")
        future = self._client.publish(self._topic, body, retry=self._retry, timeout=_CALL_S, **attributes)
        published = Published(future, self._topic, self._timeout_s, self._forget)
        with self._changed:
            self._unsettled.add(published)
        future.add_done_callback(lambda done: None if done.exception() else self._forget(published))
        return published

    def _forget(self, published: Published) -> None:
        """Somebody knows what became of it."""
        with self._changed:
            self._unsettled.discard(published)


def control_body(kind: str, campaign_id: str, seq: Optional[int] = None, at: Optional[datetime] = None) -> bytes:
    """The body of a start, pause, resume or cancel; InvalidTrigger. For who publishes otherwise. at: of a start."""
    _check(kind in ("start", "pause", "resume", "cancel"), "type", "must be start, pause, resume or cancel")
    _name("campaign_id", campaign_id, 100)
    body: dict[str, Any] = {"v": 1, "type": kind, "campaign_id": campaign_id}
    if seq is not None:
        _check(type(seq) is int and 0 <= seq <= SEQ_MAX, "seq", f"must be a whole number from 0 to {SEQ_MAX}")
        body["seq"] = seq
    if at is not None:
        _check(kind == "start", "at", "is for a start alone")
        body["at"] = _moment("at", at)
    return _encoded(body)


def send_body(
    template: str,
    recipients: Sequence[Mapping[str, Any]],
    *,
    idempotency_key: str,
    priority: str,
    sender: Optional[str] = None,
    expires_at: Optional[datetime] = None,
) -> bytes:
    """The body of a `send`; InvalidTrigger. For who publishes by other means."""
    _name("template", template, 64)
    _text("idempotency_key", idempotency_key, 1, 200)
    _check(not _CONTROL.search(idempotency_key), "idempotency_key", "must hold no control character")
    _check(priority in ("critical", "high"), "priority", "must be critical or high")
    body: dict[str, Any] = {
        "v": 1,
        "type": "send",
        "idempotency_key": idempotency_key,
        "template": template,
        "priority": priority,
    }
    if sender is not None:
        _name("sender", sender, 64)
        body["sender"] = sender
    if expires_at is not None:
        body["expires_at"] = _moment("expires_at", expires_at)
    several = isinstance(recipients, Sequence) and not isinstance(recipients, (str, bytes))
    _check(several and 1 <= len(recipients) <= RECIPIENTS_MAX, "recipients", f"must be a list of 1 to {RECIPIENTS_MAX}")
    body["recipients"] = [_recipient(f"recipients.{place}", one) for place, one in enumerate(recipients)]
    ids = {recipient["recipient_id"] for recipient in body["recipients"]}
    _check(len(ids) == len(recipients), "recipients", "must each have a recipient_id of their own")
    return _encoded(body)


def _recipient(place: str, recipient: Any) -> dict[str, Any]:
    _check(isinstance(recipient, Mapping), place, "must be an object")
    known = (*_RECIPIENT, "variables")
    # The name is somebody's own and may be personal.
    unknown = [number for number, name in enumerate(recipient, 1) if name not in known]
    _check(
        not unknown,
        place,
        f"field {unknown[0] if unknown else ''} is not known (counted from 1); known are {', '.join(known)}",
    )
    for name, (fewest, most, needed) in _RECIPIENT.items():
        if needed or name in recipient:
            _check(name in recipient, place, f"needs {name}")
            _text(f"{place}.{name}", recipient[name], fewest, most)
    made = dict(recipient)
    if "variables" in made:
        _check(isinstance(made["variables"], Mapping), f"{place}.variables", "must be an object")
        made["variables"] = dict(made["variables"])
    return made


def _check(holds: bool, field: str, rule: str) -> None:
    if not holds:
        raise InvalidTrigger(field, rule)


def _name(field: str, value: Any, most: int) -> None:
    fits = isinstance(value, str) and len(value) <= most and _NAME.fullmatch(value) is not None
    _check(fits, field, f"must be 1 to {most} {_NAME_RULE}")


def _text(field: str, value: Any, fewest: int, most: int) -> None:
    _check(
        isinstance(value, str) and fewest <= len(value) <= most, field, f"must be text of {fewest} to {most} characters"
    )


def _moment(field: str, value: Any) -> str:
    """RFC 3339, UTC."""
    aware = isinstance(value, datetime) and value.utcoffset() is not None
    _check(aware, field, "must be a datetime with a time zone")
    try:
        return str(value.astimezone(UTC).isoformat().replace("+00:00", "Z"))
    except OverflowError:
        raise InvalidTrigger(field, "must lie between the years 1 and 9999") from None


def _encoded(body: dict[str, Any]) -> bytes:
    try:
        _names_are_text(body)
        encoded = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidTrigger("the trigger", "holds half of a character (a lone surrogate), which is no text") from None
    except (TypeError, ValueError, RecursionError):
        raise InvalidTrigger(
            "recipients.variables",
            "hold what JSON cannot say; use text, numbers, true, false, null, "
            "lists and objects, and no NaN or infinity",
        ) from None
    _check(
        len(encoded) <= BODY_BYTES_MAX, "the trigger", f"has {len(encoded)} bytes; at most {BODY_BYTES_MAX} are taken"
    )
    return encoded


def _names_are_text(value: Any) -> None:
    """`json` makes text of names that are none, and two of them may become the same."""
    if isinstance(value, dict):
        if not all(isinstance(name, str) for name in value):
            raise TypeError
        value = value.values()
    if not isinstance(value, str) and isinstance(value, (list, tuple, type({}.values()))):
        for inner in value:
            _names_are_text(inner)
