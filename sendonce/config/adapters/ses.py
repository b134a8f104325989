"""What can be set of an account at Amazon SES."""

from typing import Annotated, ClassVar, Literal, Optional

from pydantic import Field, field_validator, model_validator

from sendonce.config.adapters.account import SenderSettings
from sendonce.config.secrets import SecretReference
from sendonce.config.urls import base_url_problem, endpoint_of


class SesSettings(SenderSettings):
    """An account at Amazon SES, by its API v2: https://docs.aws.amazon.com/ses/latest/APIReference-V2/.

    Who signs: access_key_id and secret_access_key, where the keys stand and never the keys; without them whom AWS's own
    tools find here (profile, environment, role of the machine). endpoint_url: a VPC endpoint, say; else the region's.
    http_503: what "service unavailable" proves; `not_sent` only where the provider says so. parallel: calls side by
    side in one process. Tracking is off unless set, for it changes letters; if set, the configuration set decides.
    """

    extra: ClassVar[str] = "ses"
    secrets: ClassVar[tuple[str, ...]] = ("access_key_id", "secret_access_key")

    adapter: Literal["ses"]
    region: Optional[Annotated[str, Field(pattern=r"^[a-z]{2,}(-[a-z0-9]+)+$", max_length=40)]] = None
    profile: Optional[Annotated[str, Field(min_length=1, max_length=128)]] = None
    access_key_id: Optional[SecretReference] = None
    secret_access_key: Optional[SecretReference] = None
    endpoint_url: Optional[str] = None
    configuration_set: Optional[Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]] = None
    click_tracking: bool = False
    open_tracking: bool = False
    http_503: Literal["unknown", "not_sent"] = "unknown"
    parallel: Annotated[int, Field(ge=1, le=64)] = 8

    def endpoint(self) -> tuple[str, int] | None:
        """Without endpoint_url AWS's own tools know the region's."""
        return endpoint_of(self.endpoint_url) if self.endpoint_url is not None else None

    @field_validator("endpoint_url")
    @classmethod
    def _reachable(cls, url: Optional[str]) -> Optional[str]:
        if url is None:
            return None
        if problem := base_url_problem(url):
            raise ValueError(problem)
        return url.rstrip("/")

    @model_validator(mode="after")
    def _one_way_to_sign(self) -> "SesSettings":
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key go together; set both, or leave both out")
        if self.access_key_id is not None and self.profile is not None:
            raise ValueError("profile and access_key_id name two accounts; keep one of them")
        return self
