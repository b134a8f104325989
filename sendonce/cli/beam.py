"""Loading what runs a job. Beam takes a second and talks while it loads: only commands that send wait for it."""

import logging
from types import ModuleType


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
