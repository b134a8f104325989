"""Whether a delivery event comes from SendGrid: its signature, by the official library.

https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/getting-started-event-webhook-security-features
"""

import binascii
from typing import Final

from sendgrid import EventWebhook

SIGNATURE_HEADER: Final = "X-Twilio-Email-Event-Webhook-Signature"
TIMESTAMP_HEADER: Final = "X-Twilio-Email-Event-Webhook-Timestamp"


def is_signed(body: bytes, signature: str, timestamp: str, public_key: str) -> bool:
    """Whether `signature` is that of `timestamp` and `body`, the raw bytes as they came, under the account's key.

    signature, timestamp: the values of the two headers. public_key: as SendGrid shows it, base64 without its PEM frame;
    ValueError for what is no key. It says nothing of how often an event comes: each has an id, and counts once.
    """
    verifier = EventWebhook(public_key)
    try:
        return bool(verifier.verify_signature(body.decode("utf-8"), signature, timestamp))
    except (UnicodeDecodeError, binascii.Error):
        return False
