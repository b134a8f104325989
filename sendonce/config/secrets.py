"""Secrets by reference: settings say where a secret stands; it is read when a sender is made, and kept nowhere else."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator

from sendonce.config.faults import ConfigFault

_REFERENCE: Final = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:/[^\x00-\x1f]+")


def _reference(text: str) -> str:
    if not _REFERENCE.fullmatch(text):
        raise ValueError(
            "must say where the secret stands, env:NAME or file:/path; the secret itself stays out of here"
        )
    return text


SecretReference = Annotated[str, AfterValidator(_reference)]


def resolve(reference: str, *, sender: str, setting: str, environ: Mapping[str, str]) -> str:
    """The secret behind a reference. ConfigFault names sender, reference and mend, never any part of the value."""
    kind, _, place = reference.partition(":")
    whose = f"sender {sender}: its {setting} is {reference}, "
    if kind == "env":
        if place not in environ:
            raise ConfigFault(f"{whose}and no such variable is set here; set {place} where this job starts")
        secret = environ[place]
    else:
        try:
            secret = Path(place).read_text(encoding="utf-8")
        except OSError as fault:
            raise ConfigFault(
                f"{whose}which cannot be read ({fault.strerror}); check the path and who may read it"
            ) from None
        except UnicodeDecodeError:
            raise ConfigFault(f"{whose}which is not text; write the secret alone into it") from None
    secret = secret.strip()
    if not secret:
        raise ConfigFault(f"{whose}which is empty; write the secret into it")
    if not secret.isascii() or not secret.isprintable() or " " in secret:
        raise ConfigFault(
            f"{whose}which holds more than a secret (a space or a line break); write the secret alone into it"
        )
    return secret
