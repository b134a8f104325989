"""From recipients to letters: one batch becomes form letters, a row of values for each recipient, and refusals.

A letter is packed where that is safe and whole where it is not; either way its texts are what plain rendering
gives. A recipient whose letter cannot be made gets a refusal and disturbs nobody else. The same recipients give
the same texts, whichever of them are asked for: a repeated request repeats its bytes.
"""

import logging
from collections.abc import Iterable, Iterator
from typing import Any, Final, Optional

from jinja2 import Template
from jinja2.runtime import Context

from schemas.letters import FormLetter, Letter, Letters, Refusal
from schemas.outcomes import Outcome
from sendonce.addresses import fits_a_header
from sendonce.rendering.compiled import Compiled, Parts, RenderStats, compile_template
from sendonce.rendering.environment import DESK
from sendonce.rendering.form_letters import (
    NotPacked,
    blank_to_empty,
    build_form,
    one_line,
    subject_taker,
    subject_value,
)
from sendonce.rendering.limits import PART_BYTES, Sheet, check_part, chunk_for
from sendonce.rendering.recipients import Addressee, names_for
from sendonce.rendering.refusals import Unfit, unfit

__all__ = ["Addressee", "Compiled", "RenderStats", "compile_template", "render_batch"]

log = logging.getLogger(__name__)

# A template whose letters nearly all differ in form gains nothing from packing: the rest of a batch goes whole.
FORMS_PER_BATCH: Final = 500
SELF_CHECK_EVERY: Final = 1_000


def render_batch(
    compiled: Compiled,
    addressees: Iterable[Addressee],
    *,
    campaign_id: str,
    from_address: str,
    reply_to: str,
    pack: bool = True,
) -> Letters:
    """Letters and refusals for some recipients of one batch, in the order of ordinals.

    Form letters are numbered by first use. Never raises for what a recipient's data does; ValueError for a
    `from_address` or `reply_to` with control characters.
    """
    for name, address in (("from", from_address), ("reply-to", reply_to)):
        if not fits_a_header(address):
            raise ValueError(f"the {name} address holds a control character; write it on one line")
    pack = pack and compiled.packing and compiled.prefix not in from_address + reply_to
    batch = _Batch(compiled, campaign_id, pack)
    DESK.sheet = batch.sheet
    try:
        for addressee in sorted(addressees, key=lambda addressee: addressee.ordinal):
            batch.add(addressee)
    finally:
        del DESK.sheet
    batch.count()
    return Letters(from_address, reply_to, list(batch.numbers), batch.letters, batch.refusals)


class _Batch:
    """The letters of one call, as they come."""

    def __init__(self, compiled: Compiled, campaign_id: str, pack: bool) -> None:
        self.letters: list[Letter] = []
        self.refusals: list[Refusal] = []
        self.numbers: dict[FormLetter, int] = {}
        self.sheet = Sheet()
        self._compiled = compiled
        self._campaign_id = campaign_id
        self._pack = pack
        self._used: dict[Any, int] = {}
        self._checks = 0

    def add(self, addressee: Addressee) -> None:
        """Render one letter or note why there is none."""
        try:
            if not addressee.to.isprintable():
                raise Unfit(Outcome.ADDRESS_INVALID, "a control character in the address")
            parts = self._compiled.parts(addressee.locale)
            names = names_for(addressee, self._compiled.manifest, self._campaign_id, parts.text_locale, parts.globals)
            self.letters.append(self._letter(addressee, parts, names))
        except Exception as fault:
            reason = unfit(fault)
            self.refusals.append(Refusal(addressee.ordinal, addressee.message_id, int(reason.outcome), reason.detail))

    def _letter(self, addressee: Addressee, parts: Parts, names: dict[str, Any]) -> Letter:
        if self._pack:
            try:
                return self._packed(addressee, parts, names)
            except Exception:
                # Whatever it was: plain rendering decides whether there is a letter.
                log.debug("a letter of template %s goes whole", self._compiled.source.name)
        subject, text, html = self._plain(addressee, parts, names)
        whole = (addressee.ordinal, addressee.message_id, addressee.to, addressee.unsubscribe_url)
        return Letter(*whole, subject=subject, text=text, html=html)

    def _packed(self, addressee: Addressee, parts: Parts, names: dict[str, Any]) -> Letter:
        sheet, chunk = self.sheet, chunk_for(len(addressee.variables))
        sheet.start()
        values = sheet.values
        sheet.take = subject_taker(values)
        subject = sheet.gather(_stream(parts.subject, names), chunk)
        sheet.take = values.append
        text = sheet.gather(_stream(parts.text, names), chunk)
        html = sheet.gather(_stream(parts.html, names), chunk)

        key = (subject, text, html)
        known = self._compiled.form(key)
        form = known or build_form(self._compiled.prefix, subject, text, html)
        letter, row = form.letter, form.row(values)
        if letter is None:
            raise NotPacked
        if form.size + 4 * sum(map(len, row)) > PART_BYTES:
            for part in letter.fill(row):
                check_part(part)
        if known is None or not next(self._compiled.turns) % SELF_CHECK_EVERY:
            self._check(letter.fill(row), addressee, parts, names)
            self._compiled.keep_form(key, form)
        number = self._used.get(key)
        if number is None:
            number = self._used[key] = self._number(letter)
        return Letter(addressee.ordinal, addressee.message_id, addressee.to, addressee.unsubscribe_url, number, row)

    def _number(self, letter: FormLetter) -> int:
        if letter not in self.numbers and len(self.numbers) >= FORMS_PER_BATCH:
            raise NotPacked
        return self.numbers.setdefault(letter, len(self.numbers))

    def _check(self, filled: tuple[str, str, str], addressee: Addressee, parts: Parts, names: dict[str, Any]) -> None:
        """Compare with a plain render. They never differ; should they, nothing of this template is packed any more."""
        self._checks += 1
        if filled == self._plain(addressee, parts, names):
            return
        self._pack = self._compiled.packing = False
        with self._compiled.lock:
            self._compiled.stats.mismatches += 1
        log.error("packed and plain letters of template %s differ; its letters go whole", self._compiled.source.name)
        raise NotPacked

    def _plain(self, addressee: Addressee, parts: Parts, names: dict[str, Any]) -> tuple[str, str, str]:
        """The three texts of one letter without any packing. Raises what unfits the recipient."""
        sheet, chunk = self.sheet, chunk_for(len(addressee.variables))
        sheet.start()
        sheet.take = subject_value
        subject = one_line("".join(sheet.gather(_stream(parts.subject, names), chunk)))
        sheet.take = str
        text = blank_to_empty("".join(sheet.gather(_stream(parts.text, names), chunk)))
        html = blank_to_empty("".join(sheet.gather(_stream(parts.html, names), chunk)))
        if not subject.strip():
            raise Unfit(Outcome.RENDER_EMPTY_SUBJECT, "the subject is empty")
        if not (text or html):
            raise Unfit(Outcome.RENDER_EMPTY_BODY, "neither the text nor the HTML part holds anything")
        for part in (subject, text, html):
            check_part(part)
        return subject, text, html

    def count(self) -> None:
        """Add what was done to the template's statistics."""
        packed = sum(1 for letter in self.letters if letter.form is not None)
        with self._compiled.lock:
            stats = self._compiled.stats
            stats.packed += packed
            stats.whole += len(self.letters) - packed
            stats.refused += len(self.refusals)
            stats.self_checks += self._checks


def _stream(template: Optional[Template], names: dict[str, Any]) -> Iterator[Any]:
    """The pieces of one part as the template writes them."""
    if template is None:
        return iter(())
    return template.root_render_func(Context(template.environment, names, template.name, template.blocks))
