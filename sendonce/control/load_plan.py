"""What a load is to make: its options settled into a campaign's row, and how to tell that it was made before."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Optional

import orjson

from schemas.tables import COMMIT_TIME, Campaign
from sendonce.addresses import BadAddress, sender_address
from sendonce.config.model import BATCH_SIZE_MAX, LANE_NAMES
from sendonce.control.expiry import EXPIRES_AT, text_of
from sendonce.control.load_faults import LoadFault
from sendonce.control.recipients_file import RecipientsFile
from sendonce.control.suppressions import BULK, EVERYWHERE, checked_list
from sendonce.rendering.catalogue import TemplateSource, manifest_of
from sendonce.zones import locale_name, nearest_zone, zone_name


@dataclass(frozen=True)
class LoadOptions:
    """How to load. None: found out from the file (format, delimiter, quote, encoding) or from the template (the rest).

    `column_map` goes from our name, a field or a variable, to the file's column. `strict` rejects rows with an unknown
    locale or time zone, which otherwise get the default and a counted warning. `sender` "" is the lane's;
    `unsubscribe_base_url` "" makes letters without unsubscribe links. `list_name`: a list whose suppressions hold
    beside those for all letters, and which the links take people off; "" is the list `bulk` for bulk campaigns, none
    for others. `expires_at`: the campaign's end, in UTC.
    """

    format: Optional[str] = None
    delimiter: Optional[str] = None
    quote: Optional[str] = None
    encoding: Optional[str] = None
    column_map: Mapping[str, str] = field(default_factory=dict)
    strict: bool = False
    default_locale: Optional[str] = None
    default_timezone: Optional[str] = None
    batch_size: int = 1000
    priority: Optional[str] = None
    sender: str = ""
    from_address: Optional[str] = None
    unsubscribe_base_url: str = ""
    list_name: str = ""
    expires_at: Optional[datetime] = None
    rejects_folder: Path = Path(".sendonce/rejects")


@dataclass(frozen=True)
class LoadReport:
    """What a load did. rows_read = recipients + rows_rejected + rows_duplicate; blank rows count as none.

    `rejected_by_reason` holds duplicates, too. `already_loaded`: the same was sealed before, nothing was changed, and
    the numbers are those of then. `default_language`: recipients by locale, of those whose locales the template does
    not speak: they get its default language. `unused_columns`: columns that the template uses nowhere.
    `missing_variables`: required by the template, given by no row. `called_off`: a trigger cancelled the campaign
    before it came, so submitting it cancels it.
    """

    campaign_id: str
    recipients: int
    batches: int
    rows_read: int
    rows_rejected: int
    rows_duplicate: int
    rejected_by_reason: dict[str, int]
    warnings: dict[str, int]
    rejects_file: Optional[str]
    snapshot_hash: str
    seconds: float
    already_loaded: bool = False
    default_language: dict[str, int] = field(default_factory=dict)
    unused_columns: list[str] = field(default_factory=list)
    missing_variables: list[str] = field(default_factory=list)
    called_off: bool = False


# What of a report is kept with the campaign, so that loading again can tell it.
KEPT: Final = (
    "rows_read",
    "rows_rejected",
    "rows_duplicate",
    "rejected_by_reason",
    "warnings",
    "default_language",
    "unused_columns",
    "missing_variables",
)


def campaign_row(campaign_id: str, template: TemplateSource, options: LoadOptions, by: str) -> Campaign:
    """The campaign's row but for its snapshot, every option settled. LoadFault for one that cannot be."""
    manifest = manifest_of(template)
    if not 1 <= options.batch_size <= BATCH_SIZE_MAX:
        raise LoadFault(f"a batch size of {options.batch_size}", "", f"give one from 1 to {BATCH_SIZE_MAX}")
    priority = options.priority or manifest.priority
    if priority not in LANE_NAMES:
        raise LoadFault(f"unknown priority {priority!r}", "", f"use one of {', '.join(LANE_NAMES)}")
    locale = locale_name(options.default_locale or manifest.default_locale)
    if locale is None:
        raise LoadFault(f"unknown default locale {options.default_locale!r}", "", "name one such as en or pt-BR")
    timezone = zone_name(options.default_timezone or manifest.default_timezone)
    if timezone is None:
        near = nearest_zone(options.default_timezone or "")
        mend = f"did you mean {near}?" if near else "name one such as Europe/Paris"
        raise LoadFault(f"unknown default time zone {options.default_timezone!r}", "", mend)
    from_address = options.from_address or manifest.from_address
    if not from_address:
        raise LoadFault(
            "no address to send from", f"campaign {campaign_id}", "set `from` in sendonce.yaml or the template"
        )
    settled = {
        "batch_size": options.batch_size,
        "default_locale": locale,
        "default_timezone": timezone,
        "reply_to": manifest.reply_to,
        "unsubscribe_base_url": options.unsubscribe_base_url,
        "list": checked_list(options.list_name or (BULK if priority == "bulk" else EVERYWHERE)),
    }
    if options.expires_at is not None:
        settled[EXPIRES_AT] = text_of(options.expires_at)
    return Campaign(
        campaign_id=campaign_id,
        kind="campaign",
        state="loading",
        priority=priority,
        sender=options.sender,
        from_address=_checked_from(from_address),
        template=template.name,
        template_hash=template.template_hash,
        options=orjson.dumps(settled).decode(),
        snapshot_hash="",
        recipients=0,
        batches=0,
        created_at=COMMIT_TIME,
        created_by=by,
        changed_at=COMMIT_TIME,
        changed_by=by,
    )


def identity_of(plan: Campaign, file: RecipientsFile, options: LoadOptions) -> dict[str, Any]:
    """What makes a load this load: the same again must find the same. Stays in the campaign's options."""
    source = {
        "sha256": file.fingerprint,
        "bytes": file.size,
        **file.settings,
        "column_map": dict(options.column_map),
        "strict": options.strict,
    }
    return {**orjson.loads(plan.options), "source": source}


def already_loaded(
    there: Campaign, plan: Campaign, identity: dict[str, Any], options: LoadOptions, seconds: float
) -> LoadReport:
    """The report of a load that was done before. LoadFault if the campaign that is there is another."""
    place = f"campaign {there.campaign_id}"
    if there.kind != plan.kind:
        raise LoadFault(f"it is a {there.kind}, which takes no recipients file", place, "choose another id")
    if not there.snapshot_hash:
        raise LoadFault(f"it is {there.state} and was never loaded to the end", place, "choose another id")
    kept = orjson.loads(there.options)
    differences = _differences(there, plan, kept, identity)
    if differences:
        raise LoadFault(
            f"it was loaded from {differences}, and a sealed snapshot never changes",
            place,
            "load under a new campaign id",
        )
    rejects_file = options.rejects_folder / f"{there.campaign_id}.ndjson"
    return LoadReport(
        campaign_id=there.campaign_id,
        recipients=there.recipients,
        batches=there.batches,
        rejects_file=str(rejects_file) if rejects_file.exists() else None,
        snapshot_hash=there.snapshot_hash,
        seconds=seconds,
        already_loaded=True,
        **kept["load"],
    )


def _differences(there: Campaign, plan: Campaign, kept: dict[str, Any], identity: dict[str, Any]) -> str:
    """In what two loads of one campaign differ, in words; empty if in nothing."""
    was, now = kept["source"], identity["source"]
    if was["sha256"] != now["sha256"]:
        return "another file"
    if there.template_hash != plan.template_hash:
        same_name = there.template == plan.template
        return f"another version of template {there.template}" if same_name else f"template {there.template}"
    pairs = {name: (getattr(there, name), getattr(plan, name)) for name in ("priority", "sender", "from_address")}
    pairs |= {name: (kept.get(name), identity[name]) for name in identity if name != "source"}
    pairs |= {name: (was.get(name), now.get(name)) for name in {**was, **now}}
    names = sorted(name for name, (before, after) in pairs.items() if before != after)
    return f"the same file with other options ({', '.join(names)})" if names else ""


def _checked_from(text: str) -> str:
    """The address to send from, with or without a name, as senders write it."""
    try:
        return sender_address(text)
    except BadAddress as fault:
        mend = 'write one address, like "Shop <news@shop.example>"'
        raise LoadFault(f"the address to send from is no address ({fault.reason})", "", mend) from None
