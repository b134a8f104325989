"""From a sender's settings to its adapter, with the secrets that they name."""

import os
from importlib import import_module

from sendonce.config import ConfigFault, SenderSettings
from sendonce.config.secrets import resolve
from sendonce.senders.base import Sender


def make_sender(settings: SenderSettings) -> Sender:
    """The adapter that a sender's settings name: `make` of its module in `sendonce/senders/`.

    ConfigFault for a secret or a package that is missing here: adapters are imported only where they are configured.
    """
    try:
        module = import_module(f"sendonce.senders.{settings.adapter}")
    except ImportError as fault:
        raise ConfigFault(
            f"sender {settings.name}: the adapter {settings.adapter} needs the package {fault.name}, which is not "
            f"installed; install sendonce[{settings.extra}]"
        ) from None
    secrets = {
        setting: resolve(reference, sender=settings.name, setting=setting, environ=os.environ)
        for setting, reference in settings.secret_references().items()
    }
    sender: Sender = module.make(settings, secrets)
    return sender
