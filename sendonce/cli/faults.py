"""Faults that may meet any command, as message, reason for machines, and exit code."""

from sendonce.cli.main import FAILED, WRONG
from sendonce.cli.session import Unfinished
from sendonce.config import ConfigFault
from sendonce.control.faults import ControlFault, JobFault
from sendonce.stores.base import NoStore, StoreError, StoreRefused, StoreUnavailable


def explain(fault: Exception) -> tuple[str, str, int] | None:
    """What to say of a fault; None for one that nobody foresaw. An empty message: everything was said already."""
    if isinstance(fault, Unfinished):
        return "", "unfinished", FAILED
    if isinstance(fault, ControlFault):
        return str(fault), fault.reason, FAILED if fault.reason == "load_failed" else WRONG
    if isinstance(fault, JobFault):
        return str(fault), fault.reason, FAILED
    if isinstance(fault, ConfigFault):
        return str(fault), "config", WRONG
    if isinstance(fault, NoStore):
        return str(fault), "no_store", WRONG
    if isinstance(fault, StoreRefused):
        return str(fault), "store_refused", FAILED
    if isinstance(fault, StoreUnavailable):
        return str(fault), "store_unavailable", FAILED
    if isinstance(fault, StoreError):
        return str(fault), "store", FAILED
    if isinstance(fault, OSError):
        place = fault.filename or "a file"
        return f"{place}: {fault.strerror or fault}; check the path, its permissions and the disk", "file", FAILED
    return _of_templates(fault)


def _of_templates(fault: Exception) -> tuple[str, str, int] | None:
    # Only a process that loaded the renderer can have raised its fault.
    import sys

    rendering = sys.modules.get("sendonce.rendering.faults")
    if rendering is not None and isinstance(fault, rendering.TemplateFault):
        return str(fault), "template", WRONG
    return None
