"""Why a load was refused or failed: the thing, the place and the mend, and nobody's data."""

from errno import EDQUOT, ENOSPC

from sendonce.control.faults import ControlFault


class LoadFault(ControlFault):
    """The load cannot be done as asked: a file, a column, an option or the campaign's state forbids it.

    No snapshot was sealed. `thing` is what is wrong, `place` where (a file, a line, a folder, a campaign; may be
    empty), `mend` what to do.
    """

    reason = "load_refused"

    def __init__(self, thing: str, place: str, mend: str) -> None:
        super().__init__(f"{place}: {thing}; {mend}" if place else f"{thing}; {mend}")
        self.thing = thing
        self.place = place
        self.mend = mend


class LoadFailed(LoadFault):
    """The call was right, the work failed: a full disk, a folder without permission, a load that was overtaken."""

    reason = "load_failed"


def folder_fault(fault: OSError, thing: str, place: str) -> LoadFailed:
    """What an error of the operating system means for a file that we write."""
    full = fault.errno in (ENOSPC, EDQUOT)
    mend = "make room there, then load again" if full else "check its permissions, then load again"
    return LoadFailed(f"cannot write {thing} ({fault.strerror or type(fault).__name__})", place, mend)
