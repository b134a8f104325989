"""Why a control function refused: each message names the thing and the mend, `reason` is for machines."""

from typing import Final

from schemas.ids import STREAM_PREFIX

_MENDS: Final = {
    ("submit", "loading"): "its recipients are still being loaded; run `sendonce load` again if that was cut off",
    ("submit", "completed"): "every recipient has a final outcome; load a new campaign to send again",
    ("submit", "cancelling"): "it was cancelled, and that is final; load a new campaign",
    ("submit", "cancelled"): "it was cancelled, and that is final; load a new campaign",
    ("pause", "loading"): "it has not been submitted; there is nothing to pause",
    ("pause", "ready"): "it has not been submitted; there is nothing to pause",
    ("resume", "loading"): "its recipients are still being loaded; run `sendonce load` again if that was cut off",
    ("unload", "loading"): "it is not sealed; run `sendonce load` again, which clears what a load that died left",
    ("unload", "running"): "it was submitted, and what was sent must stay on record; `sendonce cancel` stops it",
    ("unload", "paused"): "it was submitted, and what was sent must stay on record; `sendonce cancel` ends it",
    ("unload", "halted"): "it was submitted, and what was sent must stay on record; `sendonce cancel` ends it",
    ("unload", "cancelling"): "its outcomes stay on record; load under another id",
    ("unload", "cancelled"): "its outcomes stay on record; load under another id",
    ("unload", "completed"): "its outcomes stay on record; load under another id",
    ("retry", "loading"): "its recipients are still being loaded",
    ("retry", "ready"): "it was never started; `sendonce submit` starts it",
    ("retry", "cancelling"): "it was cancelled, and that is final; load a new campaign",
    ("retry", "cancelled"): "it was cancelled, and that is final; load a new campaign",
    ("resume", "ready"): "it was never started; `sendonce submit` starts it",
}


_STREAM_MENDS: Final = {
    "preview": "that send is final, and its address and variables were wiped with it; preview its template instead",
    "rehearse": "its letters come and go; `sendonce check` and `sendonce preview` look at its template",
    "test-send": "name its template instead",
    "retry": "what its letters were made of is wiped when they are final; publish the send again under a new key",
}


class ControlFault(Exception):
    """Base of what a control function refuses: the call was wrong, nothing changed."""

    reason = "refused"


class JobFault(Exception):
    """A running job lost what it cannot go on without, and a person must bring it back. The call was right."""

    reason = "job_failed"


class UnknownCampaign(ControlFault):
    """No campaign of this name is in the store."""

    reason = "unknown_campaign"

    def __init__(self, campaign_id: str) -> None:
        super().__init__(f"there is no campaign {campaign_id!r} in the store; `sendonce list` shows those there are")
        self.campaign_id = campaign_id


class UnknownRecipient(ControlFault):
    """The campaign's snapshot does not hold this recipient id."""

    reason = "unknown_recipient"

    def __init__(self, campaign_id: str) -> None:
        if campaign_id.startswith(STREAM_PREFIX):
            super().__init__(
                f"no send of {campaign_id} is to a recipient with that id; sends of another day, template or priority "
                "are in other streams, see `sendonce list`"
            )
            return
        super().__init__(
            f"campaign {campaign_id} has no recipient with that id; "
            f"rows that were not taken are in rejects/{campaign_id}.ndjson beside the store"
        )


class WrongState(ControlFault):
    """The campaign's state does not allow this."""

    reason = "wrong_state"

    def __init__(self, campaign_id: str, state: str, action: str) -> None:
        mend = _MENDS.get((action, state), f"a {state} campaign cannot be changed")
        super().__init__(f"cannot {action} campaign {campaign_id}: it is {state}; {mend}")
        self.campaign_id, self.state = campaign_id, state


class NotForStreams(ControlFault):
    """This cannot be done with a stream, whose sends leave nothing behind from which a letter could be made."""

    reason = "stream"

    def __init__(self, campaign_id: str, action: str) -> None:
        super().__init__(f"cannot {action} campaign {campaign_id}: it is a stream of sends; {_STREAM_MENDS[action]}")
