"""What can be set of a webhook: an https endpoint of the user's own that takes letters."""

from typing import Annotated, ClassVar, Literal, Optional
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from sendonce.config.adapters.account import SenderSettings
from sendonce.config.secrets import SecretReference
from sendonce.config.urls import base_url_problem, endpoint_of


class WebhookSettings(SenderSettings):
    """Letters as JSON to an https address; docs/webhook.md says what its receiver gets and may answer.

    secret: where the secret of its signatures stands, never the secret. recipients: letters in a request, which is also
    what a kill puts in doubt. idempotency_window_s: for how long the receiver takes the same Idempotency-Key once; only
    it knows, so without this no request in doubt is repeated. http_503: what "service unavailable" without Retry-After
    proves. max_request_bytes: the largest body. allow_private: also addresses that are not of the public internet, and
    http to this machine; for tests, refused in a store for production.
    """

    extra: ClassVar[str] = "webhook"
    secrets: ClassVar[tuple[str, ...]] = ("secret",)

    adapter: Literal["webhook"]
    url: str
    secret: SecretReference
    recipients: Annotated[int, Field(ge=1, le=1000)] = 100
    idempotency_window_s: Optional[Annotated[float, Field(ge=0, le=366 * 86_400)]] = None
    http_503: Literal["unknown", "not_sent"] = "unknown"
    max_request_bytes: Annotated[int, Field(ge=10_000, le=100_000_000)] = 10_000_000
    parallel: Annotated[int, Field(ge=1, le=64)] = 4
    allow_private: bool = False

    def endpoint(self) -> tuple[str, int]:
        return endpoint_of(self.url)

    @field_validator("url")
    @classmethod
    def _reachable(cls, url: str) -> str:
        if problem := base_url_problem(url):
            raise ValueError(problem)
        return url

    @model_validator(mode="after")
    def _is_secure(self) -> "WebhookSettings":
        if urlsplit(self.url).scheme != "https" and not self.allow_private:
            raise ValueError("url must be an https address (http only to this machine, with allow_private, for tests)")
        return self
