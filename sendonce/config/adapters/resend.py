"""What can be set of an account at Resend."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from sendonce.config.adapters.account import SenderSettings
from sendonce.config.secrets import SecretReference
from sendonce.config.urls import base_url_problem


class ResendSettings(SenderSettings):
    """An account at Resend (https://resend.com/docs/api-reference/emails/send-batch-emails).

    api_key: where the key stands, never the key; one that may only send is enough. recipients: letters in a request,
    which is also what a kill puts in doubt until it is asked again. parallel: calls side by side in one process; Resend
    counts calls a second for a whole team.
    """

    extra: ClassVar[str] = "resend"
    secrets: ClassVar[tuple[str, ...]] = ("api_key",)

    adapter: Literal["resend"]
    api_key: SecretReference
    base_url: str = "https://api.resend.com"
    recipients: Annotated[int, Field(ge=1, le=100)] = 100
    parallel: Annotated[int, Field(ge=1, le=64)] = 2

    @field_validator("base_url")
    @classmethod
    def _reachable(cls, url: str) -> str:
        if problem := base_url_problem(url):
            raise ValueError(problem)
        return url.rstrip("/")
