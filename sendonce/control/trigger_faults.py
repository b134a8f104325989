"""Why a trigger becomes a dead letter."""


class BadTrigger(Exception):
    """A trigger that will never be understood or allowed. `reason` is machine-readable; no value of it is repeated."""

    def __init__(self, reason: str, detail: str, campaign_id: str | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.campaign_id = campaign_id
