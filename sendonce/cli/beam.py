"""Loading what runs a job. Beam takes a second and talks while it loads: only commands that send wait for it."""

from types import ModuleType

from sendonce.config import ConfigFault


def local_runner() -> ModuleType:
    """`pipelines.local`, with Beam's own log lines kept to warnings."""
    from pipelines.process import settle_process
    from pipelines.quiet import loading_quietly

    with loading_quietly():
        from pipelines import local
    local.quiet_beam()
    settle_process()
    module: ModuleType = local
    return module


def live_runner() -> ModuleType:
    """`pipelines.live`, likewise. ConfigFault where Google's client of Pub/Sub is not installed."""
    from pipelines.quiet import loading_quietly

    local_runner()
    try:
        with loading_quietly():
            from pipelines import live
    except ImportError as fault:
        raise ConfigFault(
            f"a subscription needs the package {fault.name}, which is not installed; "
            "install sendonce[gcp] (`make cloud`)"
        ) from None
    module: ModuleType = live
    return module
