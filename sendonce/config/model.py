"""The shape of `sendonce.yaml`: what can be set, its defaults and its bounds."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Optional

from pydantic import Field, field_validator, model_validator

from sendonce.addresses import BadAddress, normalise, sender_address
from sendonce.config.adapters import AnySender
from sendonce.config.adapters.account import SenderName, Strict, limits_once
from sendonce.config.limits import LimitSetting
from sendonce.config.urls import base_url_problem
from sendonce.mailboxes import KNOWN, domain_pattern
from sendonce.times import DEFAULTS, Times, check_times

DEFAULT_STORE: Final = "sqlite:///.sendonce/sendonce.db"

# A provider's largest bulk call is 1,000 (SendGrid); larger batches need fewer requests per form letter. What ends a
# batch at once writes a row for each recipient: 5,000 are 70,000 mutations, of 80,000 that Spanner takes in a commit.
BATCH_SIZE_MAX: Final = 5000

# Pub/Sub's rules for names: https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names
_RESOURCE: Final = r"projects/[a-z][-a-z0-9:.]{4,61}[a-z0-9]/%s/(?!goog)[A-Za-z][A-Za-z0-9._~+%%-]{2,254}"
SUBSCRIPTION_NAME: Final = re.compile(_RESOURCE % "subscriptions")
TOPIC_NAME: Final = re.compile(_RESOURCE % "topics")

LaneName = Literal["critical", "high", "bulk"]
TimeName = Literal[
    "tick_s", "window_s", "visibility_s", "permit_ttl_s", "request_timeout_s", "lease_s", "margin_s", "answer_s"
]
LANE_NAMES: Final[tuple[LaneName, ...]] = ("critical", "high", "bulk")

# Critical and high letters wait for a person when in doubt; a bulk letter is assumed sent (DELIVERY 4).
_LANE_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "critical": {"batch_size": 100, "in_doubt": "hold", "parallel": 16},
    "high": {"batch_size": 100, "in_doubt": "hold", "parallel": 16},
    "bulk": {"batch_size": 5000, "in_doubt": "assume"},
}


class Lane(Strict):
    """The running configuration of one priority.

    fallback: the sender by which what certainly was not taken goes while the lane's own cannot send (breaker open,
    halted). shards: keys over which its work is spread. batch_size: recipients of a batch, used by `load`. in_doubt:
    what becomes of a request whose fate stays unknown. hold_max_s: longest wait for a permit inside the pipeline.
    parallel: requests side by side in one process. outbound_log: a row for each message, or for exceptions only.
    times: changes to the table in `sendonce/times.py`, in seconds.
    """

    name: LaneName
    sender: SenderName
    limits: list[LimitSetting] = []
    shards: Annotated[int, Field(ge=1, le=256)] = 4
    batch_size: Annotated[int, Field(ge=1, le=BATCH_SIZE_MAX)] = 1000
    in_doubt: Literal["hold", "assume", "resend"] = "hold"
    hold_max_s: Annotated[float, Field(gt=0, le=60)] = 2.0
    parallel: Annotated[int, Field(ge=1, le=64)] = 4
    outbound_log: Literal["rows", "packed"] = "rows"
    times: dict[TimeName, Annotated[float, Field(gt=0, le=3600)]] = {}
    fallback: Optional[SenderName] = None

    _limits = field_validator("limits")(limits_once)

    def senders(self) -> tuple[str, ...]:
        """The senders that it may send by, its own first."""
        return (self.sender,) if self.fallback is None else (self.sender, self.fallback)

    def all_times(self) -> Times:
        """The lane's times: the defaults of `sendonce.times` with what is set here."""
        return replace(DEFAULTS[self.name], hold_max_s=self.hold_max_s, **{str(n): s for n, s in self.times.items()})

    @model_validator(mode="after")
    def _falls_back_on_another(self) -> "Lane":
        if self.fallback == self.sender:
            raise ValueError("fallback must be another sender than the lane's own")
        return self

    @model_validator(mode="after")
    def _times_agree(self) -> "Lane":
        if broken := check_times(self.all_times(), self.name):
            raise ValueError("; ".join(broken))
        return self


class DomainGroup(Strict):
    """Mailboxes of one operator, and what it may be sent by all lanes and senders together.

    domains: `gmail.com`, `yahoo.*` (any ending), `*.corp.example` (everything below); those of `sendonce.mailboxes`
    where the name is known there and none are given.
    """

    name: SenderName
    domains: list[str] = []
    limits: Annotated[list[LimitSetting], Field(min_length=1)]

    _limits = field_validator("limits")(limits_once)

    @field_validator("domains")
    @classmethod
    def _patterns(cls, domains: list[str]) -> list[str]:
        return [domain_pattern(text) for text in domains]

    @model_validator(mode="before")
    @classmethod
    def _known(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and not raw.get("domains"):
            name = str(raw.get("name"))
            if name not in KNOWN:
                raise ValueError(f"must list its domains; groups that are known without are {', '.join(KNOWN)}")
            return {**raw, "domains": list(KNOWN[name])}
        return raw


class Unsubscribe(Strict):
    """Where the unsubscribe links point. RFC 8058 asks for https; http is taken for loopback only."""

    base_url: str

    @field_validator("base_url")
    @classmethod
    def _https(cls, url: str) -> str:
        if problem := base_url_problem(url):
            raise ValueError(problem.replace("api.provider.example", "shop.example/u"))
        return url.rstrip("/")


class Config(Strict):
    """Everything one installation sets. Lanes, senders, guards and topics go to the store by `config apply`; jobs
    read them there.

    subscription: where a live job's triggers come from. outcomes_topic: who waits for the answer of a `send` is told
    there; dead_letters_topic: so is who looks after dead letters. environment: what the store must have been made for.
    recipients_allowed: addresses and `@domain`s (not what is below them); nobody else gets a letter. redirect_all_to:
    every letter goes there.
    """

    store: str = DEFAULT_STORE
    subscription: Optional[str] = None
    outcomes_topic: Optional[str] = None
    dead_letters_topic: Optional[str] = None
    environment: Optional[Literal["test", "production"]] = None
    recipients_allowed: Optional[Annotated[list[str], Field(min_length=1)]] = None
    redirect_all_to: Optional[str] = None
    from_address: Annotated[str, Field(alias="from")] = ""
    templates: list[str] = ["templates"]
    unsubscribe: Optional[Unsubscribe] = None
    lanes: dict[LaneName, Lane]
    senders: dict[SenderName, AnySender]
    domains: dict[SenderName, DomainGroup] = {}

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        senders = raw.get("senders", {"outbox": {"adapter": "outbox"}})
        lanes = raw.get("lanes", {})
        if not isinstance(senders, dict) or not senders or not isinstance(lanes, dict):
            return raw
        groups = raw.get("domains")
        if groups is not None and not isinstance(groups, dict):
            return raw
        first = next(iter(senders))
        filled = {name: {"sender": first, **_LANE_DEFAULTS[name]} for name in LANE_NAMES}
        for name, lane in lanes.items():
            filled[name] = {**filled.get(name, {}), **lane} if isinstance(lane, dict) else lane
        return {
            **raw,
            "senders": {name: _named(name, sender) for name, sender in senders.items()},
            "lanes": {name: _named(name, lane) for name, lane in filled.items()},
            **({"domains": {name: _named(name, group) for name, group in groups.items()}} if groups else {}),
        }

    @field_validator("store")
    @classmethod
    def _store_url(cls, url: str) -> str:
        if not url.startswith(("sqlite:///", "spanner://")):
            raise ValueError("must be a store URL, sqlite:///relative/path or sqlite:////absolute/path")
        return url

    @field_validator("subscription")
    @classmethod
    def _subscription_name(cls, name: Optional[str]) -> Optional[str]:
        if name is not None and not SUBSCRIPTION_NAME.fullmatch(name):
            raise ValueError("must be the full name of a Pub/Sub subscription, projects/PROJECT/subscriptions/NAME")
        return name

    @field_validator("outcomes_topic", "dead_letters_topic")
    @classmethod
    def _topic_name(cls, name: Optional[str]) -> Optional[str]:
        if name is not None and not TOPIC_NAME.fullmatch(name):
            raise ValueError("must be the full name of a Pub/Sub topic, projects/PROJECT/topics/NAME")
        return name

    @field_validator("recipients_allowed")
    @classmethod
    def _addresses_or_domains(cls, allowed: Optional[list[str]]) -> Optional[list[str]]:
        return None if allowed is None else [_address_or_domain(text) for text in allowed]

    @field_validator("redirect_all_to")
    @classmethod
    def _redirect_address(cls, text: Optional[str]) -> Optional[str]:
        try:
            return None if text is None else normalise(text).wire
        except BadAddress as fault:
            raise ValueError(f"must be one address, like qa@shop.example ({fault.reason})") from None

    @field_validator("from_address")
    @classmethod
    def _one_address(cls, text: str) -> str:
        try:
            return sender_address(text) if text else ""
        except BadAddress as fault:
            raise ValueError(f'must be one address, like "Shop <news@shop.example>" ({fault.reason})') from None

    @model_validator(mode="after")
    def _senders_exist(self) -> "Config":
        for lane in self.lanes.values():
            for name in lane.senders():
                if name not in self.senders:
                    known = ", ".join(self.senders)
                    raise ValueError(
                        f"lane {lane.name} names the sender {name!r}, which is not under senders ({known})"
                    )
        return self

    @model_validator(mode="after")
    def _domains_once(self) -> "Config":
        named: dict[str, str] = {}
        for group in self.domains.values():
            for pattern in group.domains:
                if named.setdefault(pattern, group.name) != group.name:
                    raise ValueError(f"the domain {pattern} is in the groups {named[pattern]} and {group.name}")
        return self

    def topics(self) -> dict[str, str]:
        """The topics for notices that are set, by kind: `outcomes`, `dead_letters`."""
        found = {"outcomes": self.outcomes_topic, "dead_letters": self.dead_letters_topic}
        return {kind: topic for kind, topic in found.items() if topic is not None}

    def template_folders(self) -> list[Path]:
        """The project's own template folders, searched in this order before the ones that ship."""
        return [Path(folder) for folder in self.templates]


def _address_or_domain(text: str) -> str:
    """An address in the form that addresses are compared in, or `@` and a domain in the same."""
    try:
        if text.startswith("@"):
            return normalise(f"a{text}").key_form.removeprefix("a")
        return normalise(text).key_form
    except BadAddress as fault:
        raise ValueError(
            f"must hold addresses and domains, like qa@shop.example or @shop.example ({fault.reason})"
        ) from None


def _named(name: object, settings: object) -> object:
    return {**settings, "name": name} if isinstance(settings, dict) else settings
