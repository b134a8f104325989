"""Who a letter is for, and what its template may know about them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from schemas.outcomes import Outcome
from schemas.records import quick
from sendonce.rendering.environment import Missing
from sendonce.rendering.formats import TEXT_LOCALE
from sendonce.rendering.manifest import Manifest, variables_for
from sendonce.rendering.refusals import Unfit

# Longer integers than 64 bits are floats to orjson; people's ids and references must keep their digits.
_DIGITS: Final = bytes.maketrans(b"123456789", b"000000000")
_LONG_NUMBER: Final = b"0" * 19


@quick
@dataclass(frozen=True)
class Addressee:
    """One recipient of a batch. `to` is the address on the wire, `variables` a JSON object as text, or ""."""

    ordinal: int
    message_id: str
    recipient_id: str
    to: str
    locale: str
    timezone: str
    variables: str
    unsubscribe_url: str


def names_for(
    addressee: Addressee, manifest: Manifest, campaign_id: str, text_locale: str, globals: Mapping[str, Any]
) -> dict[str, Any]:
    """Every name that a template sees. Null is absent; numbers keep their digits; declared types are fitted.

    What every letter knows (`recipient`, `campaign`, `unsubscribe_url`, `vars`) cannot be hidden by a variable.
    Unfit for variables that are no JSON object; VariableFault for one that does not fit its type.
    """
    variables = variables_for(manifest, _parse(addressee.variables))
    return {
        **globals,
        **variables,
        "vars": variables,
        "recipient": {
            "id": addressee.recipient_id,
            "locale": addressee.locale,
            "timezone": addressee.timezone,
        },
        "campaign": {"id": campaign_id},
        "unsubscribe_url": addressee.unsubscribe_url,
        TEXT_LOCALE: text_locale,
    }


def _parse(text: str) -> dict[str, Any]:
    if not text:
        return {}
    try:
        raw = text.encode()
        variables = orjson.loads(raw)
        if _LONG_NUMBER in raw.translate(_DIGITS):
            variables = json.loads(text)
    except ValueError:
        raise Unfit(Outcome.RENDER_BAD_VARIABLE, "the variables are not valid JSON") from None
    if not isinstance(variables, dict):
        raise Unfit(Outcome.RENDER_BAD_VARIABLE, "the variables are not a JSON object")
    return _without_null(variables) if "null" in text else variables


def _without_null(value: Any) -> Any:
    """Null as if it had not been there: no key in an object, undefined in a list (whose places must not shift)."""
    if isinstance(value, dict):
        return {name: _without_null(inner) for name, inner in value.items() if inner is not None}
    if isinstance(value, list):
        return [Missing("null in a list") if inner is None else _without_null(inner) for inner in value]
    return value
