"""Templates that somebody pushed for sends: of each name the newest push counts, and a send is pinned to it.

What only a load or a test letter put into the store changes no send: a draft must not become everybody's code mail.
"""

from dataclasses import dataclass, replace
from typing import Final

import orjson

from schemas.tables import Setting, TemplateContent
from sendonce.addresses import BadAddress, sender_address
from sendonce.control.trigger_faults import BadTrigger
from sendonce.rendering.catalogue import TemplateSource, from_row, manifest_of, to_row
from sendonce.rendering.faults import TemplateFault
from sendonce.rendering.manifest import Manifest
from sendonce.stores.base import Reader, Store, Tx

# Where `config apply` puts the address that letters come from when their template names none.
FROM_SETTING: Final = ("letters", "from")

_KNOWN_MAX: Final = 256


@dataclass(frozen=True)
class Pushed:
    """What taking a send needs to know of a template. from_address: "" if it names none."""

    template_hash: str
    from_address: str
    reply_to: str
    default_locale: str
    default_timezone: str


# By content hash, so never stale: reading a manifest costs more than taking a send.
_known: dict[str, Pushed] = {}


def push_template(store: Store, source: TemplateSource, by: str) -> None:
    """Put a template into the store; from this commit on, sends of its name use it. Pushing an older one again, too."""

    def work(tx: Tx) -> None:
        tx.put(replace(to_row(source, tx.now(), by), sends_since=tx.now()))

    store.transact(work, tag="templates_push")


def pushed_template(reader: Reader, name: str) -> Pushed:
    """The template that sends of a name use now. BadTrigger: `unknown_template`, `bad_template`."""
    found = reader.scan(TemplateContent, name, index="templates_for_sends", newest_first=True, limit=1)
    if not found:
        raise BadTrigger(
            "unknown_template",
            f"no template {name!r} was pushed for sends; `sendonce templates push {name}` puts it into the store",
        )
    row = found[0]
    if (known := _known.get(row.template_hash)) is not None:
        return known
    try:
        manifest = manifest_of(from_row(row))
        pushed = Pushed(
            row.template_hash,
            from_of(manifest),
            manifest.reply_to,
            manifest.default_locale,
            manifest.default_timezone,
        )
    except (TemplateFault, BadAddress):
        raise BadTrigger(
            "bad_template",
            f"the template {name!r} in the store cannot be used; see `sendonce check {name}`, mend it, and "
            f"`sendonce templates push {name}`",
        ) from None
    if len(_known) >= _KNOWN_MAX:
        _known.clear()
    _known[row.template_hash] = pushed
    return pushed


def from_of(manifest: Manifest, otherwise: str = "") -> str:
    """The address that letters of a template come from, as senders write it. BadAddress."""
    return sender_address(manifest.from_address) if manifest.from_address else otherwise


def from_in(reader: Reader) -> str:
    """The address that letters come from when their template names none, by the settings; "" if they name none."""
    row = reader.get(Setting, *FROM_SETTING)
    return str(orjson.loads(row.value)) if row is not None else ""
