"""What people read for the codes of reasons. Machines (`--json`, `export`) keep the codes."""

from typing import Final

from schemas.outcomes import Outcome

_LETTERS_AND_WAITS: Final = {
    # why somebody got no letter
    "suppressed.unsubscribed": "they unsubscribed",
    "suppressed.bounced": "their mailbox bounced before",
    "suppressed.complained": "they complained of spam",
    "suppressed.manual": "a person suppressed the address",
    "suppressed.erased": "their data was erased",
    "skipped.not_allowed": "not among recipients_allowed",
    "skipped.template": "the template leaves them out",
    "skipped.operator": "a person left them out",
    "skipped.duplicate": "the send has this address twice",
    "render.undefined_variable": "a variable of the letter is missing",
    "render.error": "the letter cannot be made",
    "render.too_large": "the letter is too large",
    "render.too_slow": "the letter takes too long to make",
    "render.empty_subject": "the subject is empty",
    "render.empty_body": "the letter is empty",
    "render.bad_variable": "a variable does not fit its type",
    "render.unsafe_link": "a link is not http, https or mailto",
    "render.header_control_char": "a line break in subject or sender",
    "address.invalid": "the address is not valid",
    "address.smtputf8_unsupported": "the sender cannot carry the address",
    "expired": "its end came first",
    "exhausted": "too many tries, none was taken",
    "provider.refused": "the provider refused",
    "provider.invalid_address": "the provider: not a valid address",
    "provider.unknown_mailbox": "the provider: no such mailbox",
    "provider.mailbox_full": "the provider: the mailbox is full",
    "provider.content": "the provider: the letter's content",
    "provider.policy": "the provider: its policy",
    "provider.too_large": "the provider: too large a letter",
    # what batches wait for
    "limit": "waits for a limit",
    "paused": "paused",
    "halted": "halted",
    "sender_halted": "wait for a halted sender",
    "stopped": "stopped by a person",
    "throttled": "the provider asked to slow down",
    "breaker_open": "the provider fails; trying again later",
}
# why a trigger or a template is a dead letter
_TRIGGERS: Final = {
    "too_large": "more than a trigger may have",
    "not_utf8": "the body is no UTF-8",
    "not_json": "the body is no strict JSON",
    "unknown_version": "a version that is not known",
    "unknown_type": "a type that is not known",
    "invalid": "does not fit the schema",
    "idempotency_conflict": "the key was used with another body",
    "unknown_template": "no template of that name was pushed",
    "bad_template": "the pushed template cannot be used",
    "no_from": "no address that its letters come from",
    "no_lane": "the store has no such lane",
    "expires_too_late": "its end is too far ahead",
    "bad_at": "its start is too far ahead, or after its end",
    "not_a_stream": "a campaign has the id of its stream",
    "wrong_sender": "names another sender than its lane's",
    "unknown_campaign": "there is no such campaign",
    "wrong_state": "the campaign's state is against it",
    "no_guard": "the store or its guards are against it",
    "no_unsubscribe": "the campaign has no unsubscribe links",
    "placeholder": "its letters come from an example's address",
    "template_fault": "no letter can be made from the template",
    "snapshot_fault": "recipients or template are not as sealed",
    "not_allowed": "settings are against these letters",
    "unforeseen": "a fault that nobody foresaw",
}
_WORDS: Final = {**_LETTERS_AND_WAITS, **_TRIGGERS}


def dead_letter_reasons() -> list[str]:
    """The reasons that a dead letter may have: those of refusals, then those of triggers and templates."""
    return [*(outcome.reason for outcome in Outcome if outcome.kind == "refused"), *_TRIGGERS]


def reason_words(code: str) -> str:
    """The words for a reason; the code itself where there are none."""
    return _WORDS.get(code, code)


def wait_words(reason: str) -> str:
    if reason.startswith("domain:"):
        return f"only mailboxes of the group {reason.removeprefix('domain:')} are left, which waits for a limit"
    return reason_words(reason)
