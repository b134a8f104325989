"""Loading what runs a job. Beam takes a second and talks while it loads: only commands that send wait for it."""

import logging
from types import ModuleType

from sendonce.config import ConfigFault


def local_runner() -> ModuleType:
    """`pipelines.local`, with Beam's own log lines kept to warnings."""
    # Beam says on import which cloud libraries it did not find; on one machine none is needed.
    logging.disable(logging.WARNING)
    try:
        from pipelines import local
    finally:
        logging.disable(logging.NOTSET)
    local.quiet_beam()
    local.settle_process()
    module: ModuleType = local
    return module


def live_runner() -> ModuleType:
    """`pipelines.live`, likewise. ConfigFault where Google's client of Pub/Sub is not installed."""
    local_runner()
    logging.disable(logging.WARNING)
    try:
        from pipelines import live
    except ImportError as fault:
        raise ConfigFault(
            f"a subscription needs the package {fault.name}, which is not installed; "
            "install sendonce[gcp] (`make cloud`)"
        ) from None
    finally:
        logging.disable(logging.NOTSET)
    module: ModuleType = live
    return module
