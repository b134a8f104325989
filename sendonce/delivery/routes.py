"""By which sender a lane sends now: its own, or its fallback while its own cannot.

A message moves only while it is open: what a request has left in doubt stays with the account that was asked, and is
settled there. Each request's intent, its attempt and its messages name the account that it went by.
"""

from datetime import datetime

from sendonce.control.stops import sender_now
from sendonce.delivery.terms import Terms
from sendonce.stores.base import Reader


def route(reader: Reader, terms: Terms, now: datetime) -> Terms:
    """The terms under which new requests of a lane go now: its fallback's, if only that can send.

    terms: the lane's own. When the breaker has been open for long enough, the lane's own sender is asked again, by a
    probe; until that is accepted, others go by the fallback.
    """
    other = terms.fallback
    if other is None:
        return terms
    return other if sender_now(reader, terms.lane, terms.sender, other.sender, now) == other.sender else terms
