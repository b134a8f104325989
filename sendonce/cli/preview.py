"""`sendonce preview TEMPLATE`, `sendonce preview CAMPAIGN RECIPIENT`: one letter as files to look at."""

import difflib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson

from schemas.ids import attempt_id, message_id
from schemas.letters import Letters
from schemas.outcomes import Outcome
from schemas.tables import Batch
from sendonce.cli.output import err, out, print_json
from sendonce.cli.session import Session, Unfinished, WrongCall, with_session
from sendonce.control.campaigns import get_campaign
from sendonce.control.faults import NotForStreams, UnknownRecipient
from sendonce.control.finals import is_wiped
from sendonce.control.outcomes import people_named
from sendonce.control.unsubscribe import links_of
from sendonce.delivery.letters import addressee, compiled_for, head_of
from sendonce.folders import private_folder
from sendonce.rendering.catalogue import TemplateSource, example_variables, find_template, manifest_of, speaks
from sendonce.rendering.check import names_used
from sendonce.rendering.manifest import Manifest
from sendonce.rendering.render import Addressee, compile_template, render_batch
from sendonce.senders import mime
from sendonce.stores.opening import store_key
from sendonce.zones import locale_name, nearest_locale, nearest_zone, zone_name

_UNDEFINED = re.compile(r"undefined variable: (\w+)")
_FOLDER = Path(".sendonce/preview")


@dataclass(frozen=True)
class _Letter:
    """A rendered batch of one, and what its files are called."""

    name: str
    letters: Letters
    manifest: Manifest


@click.command()
@click.argument("target", metavar="TEMPLATE|CAMPAIGN")
@click.argument("recipient", required=False)
@click.option("--locale", metavar="TAG", help="Language of a template's preview. [its default]")
@click.option("--timezone", metavar="ZONE", help="Time zone of a template's preview. [its default]")
@click.option("--variables", metavar="JSON", help="Variables over the template's examples.")
@click.option("--open", "opens", is_flag=True, help="Open it in the browser.")
@with_session
def preview(
    session: Session,
    target: str,
    recipient: str | None,
    locale: str | None,
    timezone: str | None,
    variables: str | None,
    opens: bool,
) -> None:
    """Write one letter to look at: TEMPLATE with its examples, or that of a RECIPIENT of a CAMPAIGN.

    Makes .html, .txt and .eml files in .sendonce/preview/ and names them. Exit code 1 if the letter cannot be made.
    """
    if recipient is not None:
        if locale or timezone or variables:
            raise WrongCall("a recipient's letter has the recipient's own locale, time zone and variables")
        made = _of_recipient(session, target, recipient)
    else:
        made = _of_template(session, target, locale, timezone, _given(variables))
    if made.letters.refusals:
        _refused(session, made)
    files = _write(made)
    if session.as_json:
        print_json({kind: str(path) for kind, path in files.items()})
    else:
        out().print(f"Subject: {made.letters.texts(made.letters.letters[0])[0]}", markup=False)
        for path in files.values():
            out().print(f"  {path}", markup=False)
    if opens:
        click.launch(str((files.get("html") or files["txt"]).absolute()))


def _given(variables: str | None) -> dict[str, Any]:
    try:
        given = orjson.loads(variables) if variables else {}
    except orjson.JSONDecodeError as fault:
        raise WrongCall(f"--variables is not JSON ({fault.msg}, character {fault.pos})") from None
    if not isinstance(given, dict):
        raise WrongCall('--variables is not a JSON object, like {"name": "Ann"}')
    return given


def _of_template(
    session: Session, name: str, locale: str | None, timezone: str | None, given: dict[str, Any]
) -> _Letter:
    source = find_template(name, session.config.template_folders())
    manifest = manifest_of(source)
    _check_variables(source, manifest, given)
    locale, timezone = _locale(source, manifest, locale), _timezone(timezone)
    unsubscribe = session.config.unsubscribe
    one = Addressee(
        ordinal=0,
        message_id="preview",
        recipient_id="preview",
        to="preview@example.com",
        locale=locale or manifest.default_locale,
        timezone=timezone or manifest.default_timezone,
        variables=orjson.dumps({**example_variables(manifest), **given}, default=str).decode(),
        unsubscribe_url=f"{unsubscribe.base_url if unsubscribe else 'https://shop.example/u'}/preview",
    )
    letters = render_batch(
        compile_template(source),
        [one],
        campaign_id="preview",
        from_address=manifest.from_address or session.config.from_address or "preview@example.com",
        reply_to=manifest.reply_to,
    )
    return _Letter(f"{source.name}.{one.locale}", letters, manifest)


def _locale(source: TemplateSource, manifest: Manifest, raw: str | None) -> str | None:
    """The locale that is meant; says so when the template does not speak it."""
    name = locale_name(raw) if raw else None
    if raw and name is None:
        near = nearest_locale(raw, manifest.locales)
        raise WrongCall(
            f"--locale {raw!r} is no locale; {f'did you mean {near}? ' if near else ''}"
            f"{source.name} speaks {', '.join(manifest.locales)}; others are written like en or pt-BR",
            "unknown_locale",
        )
    if name and not speaks(source, name):
        spoken = f"{source.name} speaks {', '.join(manifest.locales)}, not {name}"
        err().print(f"{spoken}: this is the letter in {manifest.default_locale}.", style="yellow", markup=False)
    return name


def _timezone(raw: str | None) -> str | None:
    name = zone_name(raw) if raw else None
    if raw and name is None:
        near = nearest_zone(raw)
        raise WrongCall(
            f"--timezone {raw!r} is no time zone; "
            f"{f'did you mean {near}?' if near else 'write an IANA name like Europe/Paris, or an offset like +02:00'}",
            "unknown_timezone",
        )
    return name


def _check_variables(source: TemplateSource, manifest: Manifest, given: dict[str, Any]) -> None:
    """WrongCall for a variable that changes nothing: it is misspelled, or meant for another template."""
    compile_template(source)
    used = names_used(source)
    known = {*manifest.variables, *(used or ())}
    for name in given if used is not None else ():
        if name not in known:
            near = difflib.get_close_matches(name, manifest.variables, n=1)
            takes = ", ".join(manifest.variables) or "no variables"
            raise WrongCall(
                f"--variables: template {source.name} has no variable {name!r}; "
                f"{f'did you mean {near[0]}? ' if near else ''}it takes {takes}",
                "unknown_variable",
            )


def _mend(detail: str, manifest: Manifest) -> str:
    """What to do about a name that the template reads and nobody gives; empty for other faults."""
    found = _UNDEFINED.match(detail)
    if found is None:
        return ""
    name = found[1]
    near = difflib.get_close_matches(name, set(manifest.variables) - {name}, n=1)
    if name in manifest.variables:
        return f"give {name} a value, or a default in template.yaml, or ask `{{% if {name} is defined %}}`"
    if near:
        return f"did you mean {near[0]}? Else declare {name} under variables in template.yaml"
    return f"declare {name} under variables in template.yaml, or mend its spelling"


def _of_recipient(session: Session, campaign_id: str, recipient_id: str) -> _Letter:
    campaign = get_campaign(session.store, campaign_id)
    found = session.store.read(lambda reader: people_named(reader, campaign, recipient_id))
    if not found:
        raise UnknownRecipient(campaign_id)
    person = next((person for person in found if not is_wiped(person)), None)
    if person is None:
        raise NotForStreams(campaign_id, "preview")
    options = orjson.loads(campaign.options)
    links = session.store.read(lambda reader: links_of(reader, options))
    name = message_id(store_key(session.store), campaign_id, person.recipient_id)
    key = (person.shard, campaign_id, person.batch_no)
    batch = session.store.read(lambda reader: reader.get(Batch, *key))
    compiled = compiled_for(session.store, (batch.template_hash if batch else None) or campaign.template_hash)
    from_address, reply_to = head_of(campaign, compiled)
    letters = render_batch(
        compiled,
        [addressee(person, name, links)],
        campaign_id=campaign_id,
        from_address=from_address,
        reply_to=reply_to,
    )
    return _Letter(f"{campaign_id}.{name[:12]}", letters, compiled.manifest)


def _refused(session: Session, made: _Letter) -> None:
    refusal = made.letters.refusals[0]
    reason = Outcome(refusal.outcome).reason
    mend = _mend(refusal.detail, made.manifest)
    message = f"{refusal.detail}; {mend}" if mend else refusal.detail
    if session.as_json:
        print_json({"error": {"reason": reason, "message": message}})
    else:
        out().print(f"This letter cannot be made: {reason}: {message}", style="red", markup=False)
    raise Unfinished


def _write(made: _Letter) -> dict[str, Path]:
    letter = made.letters.letters[0]
    subject, text, html = made.letters.texts(letter)
    whole = mime.message(
        from_address=made.letters.from_address,
        reply_to=made.letters.reply_to,
        to=letter.to,
        subject=subject,
        text=text,
        html=html,
        message_id=letter.message_id,
        attempt_id=attempt_id(time.time_ns() // 1_000_000, os.urandom(10)),
        unsubscribe_url=letter.unsubscribe_url,
    )
    private_folder(_FOLDER)
    contents = {"html": html.encode(), "txt": text.encode(), "eml": whole}
    files = {kind: _FOLDER / f"{made.name}.{kind}" for kind, content in contents.items() if content}
    for kind, path in files.items():
        path.write_bytes(contents[kind])
    return files
