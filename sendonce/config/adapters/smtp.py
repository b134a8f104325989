"""What can be set of an account at a mail server."""

import re
from typing import Annotated, ClassVar, Final, Literal, Optional

from pydantic import Field, field_validator, model_validator

from sendonce.addresses import BadAddress, needs_smtputf8, normalise
from sendonce.config.adapters.account import SenderSettings
from sendonce.config.secrets import SecretReference
from sendonce.config.urls import is_loopback

# RFC 8314 3: submission with TLS from the first byte, and with STARTTLS.
PORTS: Final = {"implicit": 465, "required": 587, "if_offered": 587, "never": 25}

_HOST: Final = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|[0-9A-Fa-f:.]+:[0-9A-Fa-f:.]*")
_EHLO_NAME: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?|\[[0-9A-Za-z.:]{2,60}\]")


class SmtpSettings(SenderSettings):
    """An account at a mail server.

    tls: `required` (STARTTLS or nothing), `if_offered`, `never`, or `implicit` (from the first byte). Certificates are
    always checked. port: the usual one for `tls` unless given. user, password: where they stand, both or neither.
    envelope_from: where bounces go; the from address unless given. ehlo_name: what this machine calls itself; its own
    name unless given. parallel: connections of one process. letters_per_connection: then another one is opened, since
    servers end a connection that brings many.
    """

    extra: ClassVar[str] = "smtp"
    secrets: ClassVar[tuple[str, ...]] = ("user", "password")
    is_patient: ClassVar[bool] = True

    adapter: Literal["smtp"]
    host: str
    port: Optional[Annotated[int, Field(ge=1, le=65535)]] = None
    tls: Literal["required", "if_offered", "never", "implicit"] = "required"
    user: Optional[SecretReference] = None
    password: Optional[SecretReference] = None
    envelope_from: Optional[str] = None
    ehlo_name: Optional[str] = None
    parallel: Annotated[int, Field(ge=1, le=64)] = 4
    letters_per_connection: Annotated[int, Field(ge=1, le=10_000)] = 100

    @property
    def at_port(self) -> int:
        return self.port or PORTS[self.tls]

    def endpoint(self) -> tuple[str, int]:
        return self.host, self.at_port

    @field_validator("host")
    @classmethod
    def _a_host(cls, host: str) -> str:
        if not _HOST.fullmatch(host):
            raise ValueError("must be the name or IP address of a mail server, like smtp.provider.example")
        return host

    @field_validator("ehlo_name")
    @classmethod
    def _a_name(cls, name: Optional[str]) -> Optional[str]:
        if name is not None and not _EHLO_NAME.fullmatch(name):
            raise ValueError("must be this machine's full name, like out.shop.example, or an address like [192.0.2.1]")
        return name

    @field_validator("envelope_from")
    @classmethod
    def _an_address(cls, address: Optional[str]) -> Optional[str]:
        if address is None:
            return None
        try:
            wire = normalise(address).wire
        except BadAddress as fault:
            raise ValueError(f"must be one address: it {fault.reason}") from None
        if needs_smtputf8(wire):
            raise ValueError("must be plain ASCII before the @-sign")
        return wire

    @model_validator(mode="after")
    def _secrets_stay_secret(self) -> "SmtpSettings":
        if (self.user is None) != (self.password is None):
            raise ValueError("user and password go together; set both, or neither")
        if self.user is not None and self.tls in ("if_offered", "never") and not is_loopback(self.host):
            raise ValueError(
                f"tls: {self.tls} could let the password travel where anybody reads it; set tls: required, or implicit"
            )
        return self
