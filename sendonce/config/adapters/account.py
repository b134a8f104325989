"""What every account of a provider has, whatever its adapter, and how its secrets are named."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Optional

from pydantic import BaseModel, ConfigDict, Field, field_validator

from sendonce.config.limits import LimitSetting, WarmUp
from sendonce.config.urls import endpoint_of

SenderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


def limits_once(limits: list[LimitSetting]) -> list[LimitSetting]:
    names = [limit.name for limit in limits]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{twice[0]} is set twice; keep one rate, and one cap for each window")
    return limits


class SenderSettings(Strict):
    """A configured account. Each adapter has a class of its own, with `adapter: Literal[...]`, named in `SETTINGS`.

    warm_up: how its volume may rise at first. extra: the extra of the package with what the adapter needs. Secrets are
    fields of the type `SecretReference` (or Optional), and named in `secrets`. paths: fields that are paths; in a file
    they count from the file's folder, and are absolute once read. is_patient: its adapter waits a lane's `answer_s` for
    answers (`senders.base.Patient`).
    """

    extra: ClassVar[str] = ""
    secrets: ClassVar[tuple[str, ...]] = ()
    paths: ClassVar[tuple[str, ...]] = ()
    is_patient: ClassVar[bool] = False

    if TYPE_CHECKING:  # each class says its own, in the place that it has in what stores hold
        adapter: str
    name: SenderName
    limits: list[LimitSetting] = []
    warm_up: Optional[WarmUp] = None

    _limits = field_validator("limits")(limits_once)

    def endpoint(self) -> tuple[str, int] | None:
        """Host and port that its calls go to; None where none are made, or where the settings do not say."""
        url = getattr(self, "base_url", None)
        return endpoint_of(url) if url else None

    def secret_references(self) -> dict[str, str]:
        """Where its secrets stand, by setting; one that is not set is left out."""
        return {name: reference for name in self.secrets if (reference := getattr(self, name)) is not None}
