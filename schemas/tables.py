"""The store's tables, described once: typed rows here, Spanner and SQLite DDL made from them.

Each table is a frozen dataclass; its fields are the columns, in order. Types map as follows.

    str       Size(n) characters        STRING(n)   TEXT
    int                                 INT64       INTEGER
    float                               FLOAT64     REAL
    bool                                BOOL        INTEGER
    bytes     Size(n) bytes             BYTES(n)    BLOB
    datetime  aware, UTC                TIMESTAMP   INTEGER (microseconds since 1970)
    Optional[...]                       nullable

Keys that would rise monotonically lead with `shard` (`ids.shard_of`). JSON is kept as text, so that
both stores keep it byte for byte. A new column goes to the end, Optional or with a default, and
raises SCHEMA_VERSION with a migration.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple, Optional, TypeVar, Union, get_args, get_origin, get_type_hints

from schemas.records import quick

SCHEMA_VERSION: Final = 3

# A store writes its own commit time wherever a row holds this value (Spanner: the commit timestamp).
COMMIT_TIME: Final = datetime.max


class Size(NamedTuple):
    """Most characters of a string column, or bytes of a bytes column."""

    limit: int


class Index(NamedTuple):
    """A secondary index. `null_filtered` leaves out rows in which any indexed column is null."""

    name: str
    columns: tuple[str, ...]
    unique: bool = False
    null_filtered: bool = False


class Column(NamedTuple):
    name: str
    type: type
    nullable: bool
    limit: int | None


class Table(NamedTuple):
    name: str
    row: type
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    indexes: tuple[Index, ...]

    def index_named(self, name: str) -> Index:
        return next(index for index in self.indexes if index.name == name)


TABLES: dict[type, Table] = {}
RowType = TypeVar("RowType")

Id = Annotated[str, Size(256)]
Word = Annotated[str, Size(64)]
Text = Annotated[str, Size(4096)]
Json = Annotated[str, Size(2_621_440)]
Blob = Annotated[bytes, Size(10_485_760)]


def _column(name: str, hint: Any) -> Column:
    nullable = False
    if get_origin(hint) is Union:
        (hint,) = (part for part in get_args(hint) if part is not type(None))
        nullable = True
    limit = None
    if get_origin(hint) is Annotated:
        hint, size = get_args(hint)
        limit = size.limit
    return Column(name, hint, nullable, limit)


def table(
    name: str, *, key: tuple[str, ...], indexes: tuple[Index, ...] = ()
) -> Callable[[type[RowType]], type[RowType]]:
    """Class decorator: registers a row dataclass as a table. `key` names its primary key columns, in order."""

    def register(row: type[RowType]) -> type[RowType]:
        hints = get_type_hints(row, include_extras=True)
        columns = tuple(_column(field.name, hints[field.name]) for field in fields(row))  # type: ignore[arg-type]
        TABLES[row] = Table(name, row, key, columns, indexes)
        return row

    return register


@table("meta", key=("name",))
@dataclass(frozen=True)
class Meta:
    """Facts about the store: `schema_version`, `key` (32 random bytes, never rotated), `environment`, `clock`.

    `unsubscribe_key:N` (from 1 on): a key that signs unsubscribe links; the highest signs new campaigns.
    """

    name: Word
    value: Annotated[bytes, Size(1024)]


@table("campaigns", key=("campaign_id",), indexes=(Index("campaigns_by_state", ("state", "campaign_id")),))
@dataclass(frozen=True)
class Campaign:
    """Control of one campaign. No counters live here: every claim reads this row, so progress must not write it.

    state: loading, ready, running, paused, halted, completed, cancelling, cancelled. kind: `campaign` or `stream`.
    started_at: null, too, where the options name a start that was ahead when it was submitted (`control.schedule`).
    """

    campaign_id: Id
    kind: Word
    state: Word
    priority: Word
    sender: Word
    from_address: Annotated[str, Size(1024)]
    template: Word
    template_hash: Word
    options: Json
    snapshot_hash: Word
    recipients: int
    batches: int
    created_at: datetime
    created_by: Id
    changed_at: datetime
    changed_by: Id
    seq: Optional[int] = None
    state_reason: Optional[Text] = None
    sealed_at: Optional[datetime] = None
    started_at: Optional[datetime] = None
    finished_at: Optional[datetime] = None


@table(
    "templates",
    key=("template_hash",),
    indexes=(
        Index("templates_by_name", ("name", "pushed_at")),
        Index("templates_for_sends", ("name", "sends_since"), null_filtered=True),
    ),
)
@dataclass(frozen=True)
class TemplateContent:
    """A template's files, pinned by the hash of their content. `files` is zlib-compressed JSON `{path: text}`.

    sends_since: when somebody last pushed it for the sends of its name, which use the newest; null for content that
    only a load or a test put here.
    """

    template_hash: Word
    name: Word
    files: Blob
    pushed_at: datetime
    pushed_by: Id
    sends_since: Optional[datetime] = None


@table(
    "campaign_recipients_snapshot",
    key=("shard", "campaign_id", "batch_no", "ordinal"),
    indexes=(Index("snapshot_by_recipient", ("campaign_id", "recipient_id"), unique=True),),
)
@quick
@dataclass(frozen=True)
class Recipient:
    """One recipient of a sealed snapshot; never changes. Ordered by time zone, locale, recipient id.

    In a stream, `recipient_id` is the publisher's with the send's mark behind it (`ids.send_recipient_id`), and the
    address and the variables are wiped (empty, `{}`) when the send is final.
    """

    shard: int
    campaign_id: Id
    batch_no: int
    ordinal: int
    recipient_id: Id
    email: Annotated[str, Size(320)]
    address_key: Word
    locale: Word
    timezone: Word
    template_variables: Json


@table(
    "campaign_batches",
    key=("shard", "campaign_id", "batch_no"),
    indexes=(
        Index("batches_open", ("shard", "campaign_id", "open_state", "due_at"), null_filtered=True),
        Index("batches_expiring", ("shard", "campaign_id", "open_state", "expires_at"), null_filtered=True),
    ),
)
@dataclass(frozen=True)
class Batch:
    """A stable slice of a snapshot: the unit that is planned, owned and leased.

    state: pending, queued, sending, in_doubt, held, done, cancelled; open_state repeats it and is null when it is
    final, so that the index holds unfinished work only. `outcomes` has one `Outcome` byte per ordinal; the `n_`
    counts always equal its tally. The `intent_` columns hold the one request that is in flight or in doubt (others in
    doubt are rows of `AsideDoubt`), `intent_ordinals` as packed by `ordinals.pack`; intent_at is when it was first
    intended, permit_at when its latest permit was granted. idempotency_key: of the `send` that this batch is, as its
    publisher gave it; null in campaigns.
    """

    shard: int
    campaign_id: Id
    batch_no: int
    size: int
    timezone: Word
    state: Word
    open_state: Optional[Word]
    due_at: datetime
    outcomes: Annotated[bytes, Size(65536)]
    visible_at: Optional[datetime] = None
    plan_no: int = 0
    token: int = 0
    round: int = 0
    tries: int = 0
    worker_id: Optional[Id] = None
    claimed_at: Optional[datetime] = None
    heartbeat_at: Optional[datetime] = None
    lease_s: Optional[float] = None
    wait_reason: Optional[Word] = None
    template_hash: Optional[Word] = None
    expires_at: Optional[datetime] = None
    attempt_id: Optional[Word] = None
    intent_at: Optional[datetime] = None
    intent_ordinals: Optional[Annotated[bytes, Size(65536)]] = None
    payload_hash: Optional[Word] = None
    provider: Optional[Word] = None
    provider_ref: Optional[Id] = None
    doubt_since: Optional[datetime] = None
    n_open: int = 0
    n_in_doubt: int = 0
    n_accepted: int = 0
    n_refused: int = 0
    n_skipped: int = 0
    n_suppressed: int = 0
    n_cancelled: int = 0
    n_assumed: int = 0
    finished_at: Optional[datetime] = None
    permit_at: Optional[datetime] = None
    idempotency_key: Optional[Id] = None


@table("doubts_aside", key=("shard", "campaign_id", "batch_no", "attempt_id"))
@dataclass(frozen=True)
class AsideDoubt:
    """A request in doubt that was put beside its batch, so that the batch's other recipients need not wait for it.

    state: in_doubt, held, as of a batch. ordinals: those in doubt when it was put here. The other columns are those of
    the batch's intent, wait_reason why it can't be asked again. It goes back into its batch when nobody else is open.
    """

    shard: int
    campaign_id: Id
    batch_no: int
    attempt_id: Word
    state: Word
    ordinals: Annotated[bytes, Size(65536)]
    payload_hash: Word
    provider: Word
    intent_at: datetime
    permit_at: datetime
    doubt_since: datetime
    provider_ref: Optional[Id] = None
    wait_reason: Optional[Word] = None


@table("batch_attempts", key=("shard", "campaign_id", "batch_no", "attempt_id"))
@dataclass(frozen=True)
class Attempt:
    """A finished request: which ordinals, when, what the provider said, and what a fenced owner learned too late.

    verdict: accepted, refused, not_sent, unknown, mixed. `evidence` marks a verdict that its owner was no longer
    allowed to apply; the resolver may.
    """

    shard: int
    campaign_id: Id
    batch_no: int
    attempt_id: Word
    ordinals: Annotated[bytes, Size(65536)]
    token: int
    worker_id: Id
    provider: Word
    payload_hash: Word
    verdict: Word
    started_at: datetime
    finished_at: datetime
    evidence: bool = False
    reason: Optional[Text] = None
    provider_ref: Optional[Id] = None
    outcomes: Optional[Annotated[bytes, Size(65536)]] = None


@table(
    "outbound_messages",
    key=("message_id",),
    indexes=(Index("outbound_by_campaign", ("campaign_id", "batch_no", "ordinal")),),
)
@quick
@dataclass(frozen=True)
class OutboundMessage:
    """The final outcome of one message: every message with `outbound_log: rows`, exceptions only with `packed`."""

    message_id: Word
    campaign_id: Id
    batch_no: int
    ordinal: int
    outcome: int
    at: datetime
    attempt_id: Optional[Word] = None
    provider: Optional[Word] = None
    provider_ref: Optional[Id] = None
    detail: Optional[Text] = None


@table("limits", key=("scope", "name"))
@dataclass(frozen=True)
class Limit:
    """One limit of one scope (`lane:bulk`, `sender:NAME`, `domain:GROUP`, `warmup:SENDER`). Unit: recipients.

    rate: a bucket of `burst` permits that fills at `per_s`; `level` permits were in it at `level_at`.
    cap: at most `most` permits in any sliding window of `window_s`; what was granted stands in `send_permits`.
    A cap with a `plan` (JSON list of whole numbers, never falling) is a warm-up: `most` of its first window from
    `starts_at` is the first number, and so on; nothing before `starts_at`, no limit after the last.
    `slow` (0 to 1] scales a rate down after the provider throttled.
    """

    scope: Id
    name: Word
    kind: Word
    per_s: float = 0.0
    burst: int = 0
    most: int = 0
    window_s: float = 0.0
    level: Optional[float] = None
    level_at: Optional[datetime] = None
    slow: float = 1.0
    slow_at: Optional[datetime] = None
    stripes: int = 1
    starts_at: Optional[datetime] = None
    plan: Optional[Text] = None


@table(
    "send_permits",
    key=("scope", "granted_at", "attempt_id"),
    indexes=(Index("permits_by_use", ("scope", "used_by")),),
)
@dataclass(frozen=True)
class Permit:
    """The grant log: `n` recipients of one attempt may reach the provider, at the latest at `used_by`.

    `used_by` starts as grant + permit time + request time-out and falls to the finish of the request, so that a
    cap's window closes as soon as it truly has.
    """

    scope: Id
    granted_at: datetime
    attempt_id: Word
    n: int
    used_by: datetime


@table(
    "idempotency_keys",
    key=("key_hash",),
    indexes=(Index("keys_by_time", ("shard", "created_at")),),
)
@dataclass(frozen=True)
class IdempotencyKey:
    """A `send` that was taken: the key's hash, its batch, and the hash of its body. Kept 8 days or more.

    shard: of the key's hash, so that the index does not grow at one end.
    """

    key_hash: Word
    body_hash: Word
    campaign_id: Id
    batch_no: int
    created_at: datetime
    shard: Optional[int] = None


@table(
    "suppressions",
    key=("address_key", "list_name"),
    indexes=(Index("suppressions_by_time", ("created_at",)),),
)
@dataclass(frozen=True)
class Suppression:
    """Nobody sends to this address: everywhere (`list_name` is `*`) or for one list. `outcome` is an `Outcome`."""

    address_key: Word
    list_name: Word
    outcome: int
    created_at: datetime
    created_by: Id
    source: Word
    campaign_id: Optional[Id] = None
    note: Optional[Text] = None


@table(
    "delivery_events",
    key=("event_id",),
    indexes=(
        Index("events_by_attempt", ("attempt_id",), null_filtered=True),
        Index("events_by_message", ("message_id",), null_filtered=True),
    ),
)
@dataclass(frozen=True)
class DeliveryEvent:
    """What a provider said later about a message; once per event id.

    Each of them proves that the provider had taken the message. body: JSON `{"campaign_id", "batch_no", "whole"}`; with
    `whole` it proves so for all messages of its attempt. Nothing of a person is in it.
    """

    event_id: Id
    provider: Word
    kind: Word
    at: datetime
    received_at: datetime
    body: Json
    message_id: Optional[Word] = None
    attempt_id: Optional[Word] = None
    provider_ref: Optional[Id] = None


@table("campaign_progress", key=("campaign_id",))
@dataclass(frozen=True)
class Progress:
    """Sums over a campaign's batches, overwritten whole at each aggregation: a re-run cannot count twice."""

    campaign_id: Id
    at: datetime
    total: int
    n_open: int
    n_in_doubt: int
    n_accepted: int
    n_refused: int
    n_skipped: int
    n_suppressed: int
    n_cancelled: int
    n_assumed: int
    batches_pending: int
    batches_queued: int
    batches_sending: int
    batches_in_doubt: int
    batches_held: int
    batches_done: int
    active_s: float
    rate_per_s: Optional[float] = None
    delivered: Optional[int] = None


@table(
    "dead_letters",
    key=("dead_letter_id",),
    indexes=(
        Index("dead_letters_by_campaign", ("campaign_id", "stage", "at")),
        Index("dead_letters_by_end", ("expires_at",), null_filtered=True),
    ),
)
@dataclass(frozen=True)
class DeadLetterRow:
    """What could not be processed, and why. state: open, replayed or dropped, by whom and when.

    `body` is the raw input of a trigger: only here, and only until `expires_at`, or until the row is settled. Without a
    body, `expires_at` is when the row itself goes.
    """

    dead_letter_id: Word
    stage: Word
    reason: Word
    at: datetime
    detail: Text
    campaign_id: Optional[Id] = None
    batch_no: Optional[int] = None
    ordinal: Optional[int] = None
    message_id: Optional[Word] = None
    body: Optional[Blob] = None
    expires_at: Optional[datetime] = None
    state: Word = "open"
    settled_at: Optional[datetime] = None
    settled_by: Optional[Id] = None


@table("notices", key=("shard", "notice_id"), indexes=(Index("notices_due", ("shard", "kind", "visible_at")),))
@dataclass(frozen=True)
class Notice:
    """What somebody is still to be told over Pub/Sub; the row goes when Pub/Sub has it. So every row is open.

    notice_id: the message id of an outcome, or the id of a dead letter. kind: `outcomes` or `dead_letters`, the topic's
    setting. visible_at: when it may be taken to be published; later while somebody publishes it.
    """

    shard: int
    notice_id: Word
    kind: Word
    visible_at: datetime
    created_at: datetime
    body: Json
    attributes: Text


@table(
    "triggers",
    key=("trigger_id",),
    indexes=(Index("triggers_open", ("open_state", "received_at"), null_filtered=True),),
)
@dataclass(frozen=True)
class TriggerRow:
    """A trigger that was received, before anything is acknowledged. open_state is null once it was applied."""

    trigger_id: Word
    received_at: datetime
    body: Blob
    attributes: Json
    open_state: Optional[Word]
    result: Optional[Word] = None
    applied_at: Optional[datetime] = None


@table("decisions", key=("decision_id",), indexes=(Index("decisions_by_campaign", ("campaign_id", "at")),))
@dataclass(frozen=True)
class Decision:
    """What ended a doubt, or somebody's decision. kind: resend, assume, hold, evidence, retry, cancel.

    by: `policy` (the lane's), a person, or, of `evidence`, `provider`: then nobody decided, proof settled it, and the
    reason is `event` (a `DeliveryEvent` on record) or `late_answer` (an `Attempt` marked so).
    A retry opens refused `ordinals` of a batch again; its reason is JSON `{"round", "reason"}`. A retry_round, with
    JSON `{"round", "reasons", "done"}`, says which round of its campaign was begun, and whether all of it is opened.
    """

    decision_id: Word
    campaign_id: Id
    kind: Word
    at: datetime
    by: Id
    batch_no: Optional[int] = None
    attempt_id: Optional[Word] = None
    ordinals: Optional[Annotated[bytes, Size(65536)]] = None
    reason: Optional[Text] = None


@table("jobs", key=("job_id",))
@dataclass(frozen=True)
class Job:
    """A running (or dead) process that claims work."""

    job_id: Id
    host: Id
    pid: int
    lanes: Word
    version: Word
    started_at: datetime
    heartbeat_at: datetime
    state: Word
    detail: Json = "{}"


@table("settings", key=("kind", "name"))
@dataclass(frozen=True)
class Setting:
    """Configuration that jobs read from the store; never secrets. value: JSON.

    kind: `lane`, `sender`, `domain` (a group of mailboxes), `guard`, `letters` (what all letters have in common), or
    `topic` (where notices go).
    """

    kind: Word
    name: Word
    value: Json
    changed_at: datetime
    changed_by: Id


@table("switches", key=("scope",))
@dataclass(frozen=True)
class Switch:
    """What must not send now: `all`, `lane:NAME`, `sender:NAME`; a person's stop of one has `stop:` before it.

    kind: stopped (by a person), halted (credentials), throttled (until `until_at`), open (circuit breaker). Every
    claim reads its own.
    """

    scope: Id
    kind: Word
    since: datetime
    by: Id
    reason: Text
    until_at: Optional[datetime] = None
    detail: Json = "{}"
