"""What can be set of an account at SendGrid."""

from typing import Annotated, ClassVar, Final, Literal, Optional

from pydantic import Field, field_validator, model_validator

from sendonce.addresses import fits_a_header, hides_a_line_break
from sendonce.config.adapters.account import SenderSettings
from sendonce.config.secrets import SecretReference
from sendonce.config.urls import base_url_problem

# SendGrid takes `send_at` up to 72 hours ahead; an hour is left for clocks that differ.
SEND_AFTER_MAX_S: Final = 71 * 3600


class SendGridSettings(SenderSettings):
    """An account at SendGrid. The bounds are SendGrid's: https://www.twilio.com/docs/sendgrid/api-reference/mail-send.

    api_key: where the key stands, never the key. sandbox: SendGrid checks and delivers nothing. send_after_s: SendGrid
    holds letters back this long, and a person can cancel those of `batch_id` there until ten minutes before. http_503:
    what "service unavailable" proves; `not_sent` only where the provider says so. parallel: calls side by side in one
    process. Tracking is off unless set: it changes letters.
    """

    extra: ClassVar[str] = "sendgrid"
    secrets: ClassVar[tuple[str, ...]] = ("api_key",)

    adapter: Literal["sendgrid"]
    api_key: SecretReference
    base_url: str = "https://api.sendgrid.com"
    sandbox: bool = False
    categories: Annotated[list[Annotated[str, Field(min_length=1, max_length=255)]], Field(max_length=10)] = []
    asm_group: Optional[Annotated[int, Field(ge=1)]] = None
    ip_pool: Optional[Annotated[str, Field(min_length=2, max_length=64)]] = None
    click_tracking: bool = False
    open_tracking: bool = False
    send_after_s: Optional[Annotated[int, Field(ge=0, le=SEND_AFTER_MAX_S)]] = None
    batch_id: Optional[Annotated[str, Field(min_length=1, max_length=100)]] = None
    http_503: Literal["unknown", "not_sent"] = "unknown"
    parallel: Annotated[int, Field(ge=1, le=64)] = 8

    @field_validator("base_url")
    @classmethod
    def _reachable(cls, url: str) -> str:
        if problem := base_url_problem(url):
            raise ValueError(problem)
        return url.rstrip("/")

    @field_validator("categories")
    @classmethod
    def _once(cls, categories: list[str]) -> list[str]:
        if len(set(categories)) < len(categories):
            raise ValueError("must name each category once")
        if any(not fits_a_header(category) or hides_a_line_break(category) for category in categories):
            raise ValueError("must hold no line break or control character, also not as an encoded word")
        return categories

    @model_validator(mode="after")
    def _batch_is_scheduled(self) -> "SendGridSettings":
        if self.batch_id is not None and self.send_after_s is None:
            raise ValueError("batch_id cancels scheduled letters only; set send_after_s too, or leave batch_id out")
        return self
