"""The adapters that there are: a row each, and what can be set of their accounts.

What an adapter does is in the module of its name in `sendonce/senders/`.
"""

from typing import TYPE_CHECKING, Annotated, Final, Union

from pydantic import Field

from sendonce.config.adapters.account import SenderSettings
from sendonce.config.adapters.outbox import OutboxSettings
from sendonce.config.adapters.resend import ResendSettings
from sendonce.config.adapters.sendgrid import SendGridSettings
from sendonce.config.adapters.ses import SesSettings
from sendonce.config.adapters.smtp import SmtpSettings
from sendonce.config.adapters.webhook import WebhookSettings

SETTINGS: Final[dict[str, type[SenderSettings]]] = {
    "outbox": OutboxSettings,
    "sendgrid": SendGridSettings,
    "resend": ResendSettings,
    "webhook": WebhookSettings,
    "ses": SesSettings,
    "smtp": SmtpSettings,
}

if TYPE_CHECKING:
    AnySender = SenderSettings
else:
    AnySender = Annotated[Union[tuple(SETTINGS.values())], Field(discriminator="adapter")]
