"""Publish one `send` with sendonce.client, and wait for its outcome where a subscription is named.

python publish.py LOGIN EMAIL CODE
"""

import os
import sys

from sendonce.client import InvalidTrigger, NotPublished, Publisher
from sendonce.listen import MissingOutcomes, OutcomeWaiter


def main(login: str, email: str, code: str) -> int:
    # From the event, not from the clock or at random: whoever runs this again must make the same key.
    key = f"{login}-code"
    recipient = {"recipient_id": login, "email": email, "variables": {"code": code}}
    subscription = os.environ.get("SENDONCE_OUTCOMES_SUBSCRIPTION")
    # Before the send: an outcome may come within a fraction of a second.
    waiter = OutcomeWaiter(subscription) if subscription else None
    try:
        expected = waiter.expect(key) if waiter else None
        with Publisher() as publisher:  # the topic that SENDONCE_TOPIC names
            sent = publisher.send("otp", [recipient], idempotency_key=key, priority="critical")
            print(f"published as {sent.result()}")
        if expected is not None:
            (outcome,) = expected.result(timeout_s=60)
            print(f"{outcome.outcome} {outcome.reason}".strip())
    except (InvalidTrigger, NotPublished) as fault:
        print(f"not published: {fault}", file=sys.stderr)
        return 1
    except MissingOutcomes as missing:
        print(f"published, and not known yet what became of it: {missing}", file=sys.stderr)
        return 1
    finally:
        if waiter is not None:
            waiter.close()
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 4:
        print("usage: python publish.py LOGIN EMAIL CODE", file=sys.stderr)
        raise SystemExit(2)
    raise SystemExit(main(*sys.argv[1:]))
