"""Signatures of Standard Webhooks 1.0.0, symmetric scheme (v1).

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md: HMAC-SHA256 over
`id.timestamp.body`; the secret is 24 to 64 random bytes in base64 after `whsec_`.
"""

import base64
import binascii
import hmac
from typing import Final

_PREFIX: Final = "whsec_"
_KEY_BYTES: Final = range(24, 65)


class BadSecret(ValueError):
    """Not a secret of the scheme; the text holds no part of it."""


def key_of(secret: str) -> bytes:
    """The key in a secret as people hand it on. BadSecret says what is wrong with it."""
    if not secret.startswith(_PREFIX):
        raise BadSecret(f"does not begin with {_PREFIX}")
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        raise BadSecret(f"is not base64 after {_PREFIX}") from None
    if len(key) not in _KEY_BYTES:
        raise BadSecret(f"has {len(key)} bytes after {_PREFIX}; it must have 24 to 64")
    return key


def signed(key: bytes, webhook_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The three headers of a call that leaves at `at_s` (Unix seconds). The id holds no dot."""
    content = hmac.new(key, b"%b.%d." % (webhook_id.encode("ascii"), at_s), "sha256")
    content.update(body)
    signature = base64.b64encode(content.digest()).decode()
    return {"webhook-id": webhook_id, "webhook-timestamp": str(at_s), "webhook-signature": f"v1,{signature}"}
