"""One letter's mail transaction (RFC 5321 3.3), its phase known throughout."""

from typing import Final

from schemas.outcomes import Outcome
from sendonce.failpoints import DROP_REPLY, failpoint
from sendonce.senders.base import Request, Verdict
from sendonce.senders.smtp_letters import WireLetter, seven_bit
from sendonce.senders.smtp_replies import ACCEPTED, Judgement, Phase, broke, judge, name_of
from sendonce.senders.smtp_wire import Broken, Conversation

_NO_SMTPUTF8: Final = Judgement(
    Verdict.REFUSED,
    "smtputf8_unsupported",
    Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED,
    "the server does not offer SMTPUTF8",
)
_TOO_LARGE: Final = Judgement(
    Verdict.REFUSED, "too_large", Outcome.PROVIDER_TOO_LARGE, "larger than the server takes (SIZE)"
)
# How long the answer to RSET is waited for; a server that is slower is left.
_RESET_S: Final = 10.0


class Transaction:
    """From MAIL to the reply to the final dot.

    phase: where it stands or ended. name: what the server calls the letter that it took.
    """

    def __init__(self, conversation: Conversation, request: Request, wire: WireLetter, mail_from: bytes) -> None:
        self._conversation = conversation
        self._request = request
        self._wire = wire
        self._mail_from = mail_from
        self.phase = Phase.MAIL
        self.name = ""

    async def work(self, dot_by: float, ends: float, answer_s: float) -> Judgement:
        """Deliver the letter. Times are the loop's: no dot is written after `dot_by`, and its reply may last to `ends`,
        or `answer_s` seconds if that is later.

        What leaves the conversation in doubt ends it; else it is ready for another letter.
        """
        conversation = self._conversation
        try:
            judgement = self._unfit() or await self._deliver(dot_by, ends, answer_s)
        except Broken as fault:
            judgement = broke(self.phase, fault.reason)
        except BaseException:
            conversation.abort()
            raise
        if judgement.broken:
            conversation.abort()
        if judgement.verdict is Verdict.ACCEPTED and failpoint("S5") == DROP_REPLY:
            return Judgement(Verdict.UNKNOWN, "reply_lost", stops=True)
        return judgement

    def _unfit(self) -> Judgement | None:
        """Why this server cannot be given the letter, as it said at EHLO."""
        offers = self._conversation.offers
        if self._wire.utf8 and not offers("smtputf8"):
            return _NO_SMTPUTF8
        if self._wire.eight_bit and not self._wire.utf8 and not offers("8bitmime"):
            self._data = seven_bit(self._request, self._wire.letter)
        else:
            self._data = self._wire.data
        size = self._conversation.extensions.get("size", "").strip()
        if size.isascii() and size.isdigit() and 0 < int(size) < len(self._data):
            return _TOO_LARGE
        return None

    async def _deliver(self, dot_by: float, ends: float, answer_s: float) -> Judgement:
        conversation = self._conversation
        conversation.letters += 1
        refusal = await self._envelope(dot_by)
        if refusal is not None:
            await self._reset(refusal, dot_by)
            return refusal
        self.phase = Phase.BODY
        early = await conversation.body(self._data, dot_by)
        if early is not None:
            refusal = judge(Phase.BODY, early)
            conversation.abort()
            return refusal
        self.phase = Phase.DOT
        conversation.dot()
        failpoint("S4")
        reply = await conversation.reply(max(ends, conversation.now() + answer_s))
        judgement = judge(Phase.DOT, reply)
        if judgement is ACCEPTED:
            self.name = name_of(reply)
        return judgement

    async def _envelope(self, by: float) -> Judgement | None:
        """MAIL, RCPT and DATA, in one piece where the server offers PIPELINING (RFC 2920). None if the body may follow.

        All replies of one piece are read, or the next letter would get this one's.
        """
        conversation, refusal = self._conversation, None
        commands = {
            Phase.MAIL: self._mail(),
            Phase.RCPT: b"RCPT TO:<" + self._wire.to + b">",
            Phase.DATA: b"DATA",
        }
        together = conversation.offers("pipelining")
        if together:
            conversation.write(*commands.values())
        for phase, command in commands.items():
            if refusal is None:
                self.phase = phase
            if not together:
                conversation.write(command)
            try:
                reply = await conversation.reply(by)
            except Broken:
                if refusal is None:
                    raise
                conversation.abort()
                return refusal
            goes_on = reply.code == 354 if phase is Phase.DATA else 200 <= reply.code < 300
            if refusal is None and not goes_on:
                refusal = judge(phase, reply)
                if refusal.broken or not together:
                    return refusal
            elif refusal is not None and phase is Phase.DATA and goes_on:
                await self._nothing(by)
            if phase is Phase.RCPT and goes_on:
                failpoint("M1")
        return refusal

    def _mail(self) -> bytes:
        offers = self._conversation.offers
        command = b"MAIL FROM:<" + self._mail_from + b">"
        if offers("size"):
            command += b" SIZE=%d" % len(self._data)
        if offers("8bitmime") and not self._data.isascii():
            command += b" BODY=8BITMIME"
        return command + b" SMTPUTF8" if self._wire.utf8 else command

    async def _nothing(self, by: float) -> None:
        """A server that asks for a body though it took no recipient gets an empty one (RFC 2920 3.1)."""
        self._conversation.dot()
        try:
            await self._conversation.reply(by)
        except Broken:
            self._conversation.abort()

    async def _reset(self, refusal: Judgement, by: float) -> None:
        """Clear what is left of a refused transaction. Its verdict stands, whatever becomes of this."""
        conversation = self._conversation
        if refusal.broken or not conversation.usable:
            return
        conversation.write(b"RSET")
        try:
            reply = await conversation.reply(min(by, conversation.now() + _RESET_S))
        except Broken:
            conversation.abort()
            return
        if not 200 <= reply.code < 300:
            conversation.abort()
