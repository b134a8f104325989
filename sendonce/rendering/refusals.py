"""Why a recipient gets no letter: an outcome and a detail that names template, line and variable, never a value."""

from types import TracebackType
from typing import Final, Optional

from jinja2 import Template, TemplateError, UndefinedError

from schemas.outcomes import Outcome
from sendonce.rendering.bounded import NotText
from sendonce.rendering.form_letters import HeaderControlCharacter
from sendonce.rendering.formats import FormatFault
from sendonce.rendering.hrefs import UnsafeLink
from sendonce.rendering.limits import LETTER_S, PART_BYTES, STEPS, TooLarge, TooSlow
from sendonce.rendering.values import EXPECTED, VariableFault


class Unfit(Exception):
    """This recipient gets no letter."""

    def __init__(self, outcome: Outcome, detail: str) -> None:
        super().__init__(outcome, detail)
        self.outcome = outcome
        self.detail = detail


_TOO_LARGE: Final = f"larger than {PART_BYTES:,} bytes"
_TOO_SLOW: Final = f"more than {STEPS:,} steps or {LETTER_S:g} s of computing"


def unfit(fault: BaseException) -> Unfit:
    """What an exception out of preparing or rendering one letter means for its recipient."""
    if isinstance(fault, Unfit):
        return fault
    outcome, problem = _judge(fault)
    place = _place(fault.__traceback__)
    return Unfit(outcome, f"{problem} ({place})" if place else problem)


def _judge(fault: BaseException) -> tuple[Outcome, str]:
    match fault:
        case UndefinedError():
            return Outcome.RENDER_UNDEFINED_VARIABLE, fault.message or "undefined variable"
        case FormatFault():
            return Outcome.RENDER_BAD_VARIABLE, fault.message or "a value that cannot be formatted"
        case VariableFault():
            link = str(fault).endswith(EXPECTED["url"])
            return Outcome.RENDER_UNSAFE_LINK if link else Outcome.RENDER_BAD_VARIABLE, str(fault)
        case UnsafeLink():
            return Outcome.RENDER_UNSAFE_LINK, str(fault)
        case HeaderControlCharacter():
            return Outcome.RENDER_HEADER_CONTROL_CHAR, "a control character in a value of the subject"
        case TooLarge() | MemoryError():
            return Outcome.RENDER_TOO_LARGE, _TOO_LARGE
        case TooSlow():
            return Outcome.RENDER_TOO_SLOW, _TOO_SLOW
        case NotText():
            return Outcome.RENDER_ERROR, str(fault)
        case RecursionError():
            return Outcome.RENDER_ERROR, "nested too deeply"
        case _:
            # Messages of Python and Jinja may hold values; the kind of error cannot.
            kind = "template error" if isinstance(fault, TemplateError) else "error"
            return Outcome.RENDER_ERROR, f"{kind} {type(fault).__name__}"


def _place(trace: Optional[TracebackType]) -> str:
    """`body.html.j2, line 3`: the innermost line of the template on the way to the fault."""
    place = ""
    while trace is not None:
        template = trace.tb_frame.f_globals.get("__jinja_template__")
        if isinstance(template, Template):
            place = f"{template.name}, line {template.get_corresponding_lineno(trace.tb_lineno)}"
        trace = trace.tb_next
    return place
