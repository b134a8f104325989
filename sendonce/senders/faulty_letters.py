"""Which letter it was, when a body of many could not be made: writing all at once is ten times faster than each."""

from collections.abc import Sequence

import orjson

from sendonce.senders.base import Request


def not_text(request: Request) -> int:
    """The ordinal of the letter that holds half a surrogate pair; of the first when it is in what all share."""
    for letter in request.chosen:
        try:
            "".join((letter.to, letter.unsubscribe_url, *request.letters.texts(letter))).encode()
        except UnicodeEncodeError:
            return letter.ordinal
    return request.chosen[0].ordinal


def longer_than(most: int, request: Request, made: Sequence[object]) -> int | None:
    """The ordinal of the first letter that takes more than so many bytes; None if each fits. made: letter by letter."""
    for letter, one in zip(request.chosen, made, strict=True):
        if len(orjson.dumps(one)) > most:
            return letter.ordinal
    return None
