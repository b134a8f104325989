"""Triggers: from a message's bytes to one idempotent call into control, or to one reason why not."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final

import jsonschema

from sendonce.control.campaigns import CANCELLING, ENDED, Change, begin_cancel, pause, resume, submit
from sendonce.control.early_cancels import keep_early_cancel
from sendonce.control.faults import UnknownCampaign, WrongState
from sendonce.control.guards import NotReady
from sendonce.control.strict_json import BadJson, parse
from sendonce.stores.base import Store

# Pub/Sub takes 10 MB; a trigger names things and holds at most 100 recipients.
BODY_BYTES_MAX: Final = 1 << 20


class BadTrigger(Exception):
    """A trigger that will never be understood or allowed. `reason` is machine-readable; no value of it is repeated."""

    def __init__(self, reason: str, detail: str, campaign_id: str | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.campaign_id = campaign_id


@dataclass(frozen=True)
class Trigger:
    """A valid control trigger. `seq` None: it carries no order."""

    kind: str
    campaign_id: str
    seq: int | None


_ACTIONS: Final[dict[str, Callable[..., Change]]] = {
    "start": submit,
    "pause": pause,
    "resume": resume,
    "cancel": begin_cancel,
}


def read_trigger(body: bytes) -> Trigger:
    """The trigger in a message body; BadTrigger with a reason: `too_large`, `not_utf8`, `not_json`, `unknown_version`,

    `unknown_type`, `invalid`. JSON is read strictly (RFC 8259): no NaN, no repeated names, no nesting without end.
    """
    if len(body) > BODY_BYTES_MAX:
        raise BadTrigger("too_large", f"the body has {len(body)} bytes; a trigger has at most {BODY_BYTES_MAX}")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise BadTrigger("not_utf8", f"the body is not UTF-8 from byte {fault.start} on") from None
    try:
        value, _ = parse(text)
    except BadJson as fault:
        raise BadTrigger("not_json", f"the body is no strict JSON: {fault.reason}") from None
    return _checked(value)


def _checked(value: Any) -> Trigger:
    if not isinstance(value, dict):
        raise BadTrigger("invalid", "the body is no JSON object")
    version, kind = value.get("v"), value.get("type")
    # In JSON Schema 1.0 and true compare like 1; a version is the integer 1 and nothing else.
    if type(version) is not int or version != 1:
        raise BadTrigger("unknown_version", "the field v must be 1; this release knows no other version")
    if kind not in (*_ACTIONS, "send"):
        raise BadTrigger("unknown_type", "the field type must be start, pause, resume, cancel or send")
    fault = jsonschema.exceptions.best_match(_validator("send" if kind == "send" else "control").iter_errors(value))
    if fault is not None:
        raise BadTrigger("invalid", f"{_place(fault)}: {_rule(fault)}")
    if kind == "send":
        raise BadTrigger("not_taken_here", "this job takes start, pause, resume and cancel; it does not take sends")
    if type(value.get("seq", 0)) is not int:
        raise BadTrigger("invalid", "seq: must be a whole number, written without a fraction")
    return Trigger(kind, value["campaign_id"], value.get("seq"))


def apply_trigger(store: Store, trigger: Trigger, by: str) -> Change:
    """Do what a trigger says, once however often, in whatever order and however late it comes.

    What comes after a campaign has ended, or after its cancel, changes nothing: that is a late message and no fault of
    whoever sent it, though the same call of a person is refused. A cancel before its campaign is kept, with the states
    "none". BadTrigger: `unknown_campaign`, `wrong_state`, and for a start `no_guard`, `no_unsubscribe`,
    `expired`.
    """
    try:
        return _ACTIONS[trigger.kind](store, trigger.campaign_id, by, seq=trigger.seq)
    except UnknownCampaign as fault:
        if trigger.kind != "cancel":
            raise BadTrigger("unknown_campaign", str(fault), trigger.campaign_id) from None
        return _keep(store, trigger, by)
    except WrongState as fault:
        if fault.state in ENDED or fault.state == CANCELLING:
            return Change(trigger.campaign_id, fault.state, fault.state, False, f"too late: it is {fault.state}")
        raise BadTrigger("wrong_state", str(fault), trigger.campaign_id) from None
    except NotReady as fault:
        raise BadTrigger(fault.reason, str(fault), trigger.campaign_id) from None


def _keep(store: Store, cancel: Trigger, by: str) -> Change:
    new = keep_early_cancel(store, cancel.campaign_id, cancel.seq)
    if new is None:
        return apply_trigger(store, cancel, by)
    return Change(cancel.campaign_id, "none", "none", new, "kept: whoever starts the campaign cancels it")


@cache
def _validator(shape: str) -> jsonschema.Draft202012Validator:
    schema = json.loads(resources.files("schemas").joinpath("trigger.schema.json").read_text("utf-8"))
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{shape}", "$defs": schema["$defs"]})


def _place(fault: jsonschema.ValidationError) -> str:
    return ".".join(str(step) for step in fault.absolute_path) or "the body"


def _rule(fault: jsonschema.ValidationError) -> str:
    """What the schema asks for there. Never the value, nor a name that somebody else chose: both may be personal."""
    rule: Any = fault.validator_value
    if fault.validator == "required":
        return f"needs {', '.join(rule)}"
    if fault.validator == "additionalProperties" and isinstance(fault.schema, dict):
        known = ", ".join(fault.schema.get("properties", {}))
        return f"has a field that is not known; known are {known}"
    return f"does not match {fault.validator} {json.dumps(rule)}"
