"""The headers by which a mail program unsubscribes with one click (RFC 8058), for providers that take headers."""

import re
from typing import Final

from schemas.letters import Letter
from schemas.outcomes import Outcome
from sendonce.senders.base import Unsendable

ONE_CLICK: Final = "List-Unsubscribe=One-Click"
# RFC 8058 3.1 asks for https. The URI stands between angle brackets, so it holds none, and no space (RFC 2369 2).
_HTTPS_URI: Final = re.compile(r"https://[!-;=?-~]+")


def one_click_headers(letter: Letter) -> dict[str, str]:
    """Both headers; none for a letter without a link that one click may use."""
    url = letter.unsubscribe_url
    return {"List-Unsubscribe": f"<{url}>", "List-Unsubscribe-Post": ONE_CLICK} if url.startswith("https:") else {}


def check_link(letter: Letter) -> None:
    """Unsendable for a letter whose link cannot stand in its header."""
    url = letter.unsubscribe_url
    if url.startswith("https:") and not _HTTPS_URI.fullmatch(url):
        raise Unsendable(
            letter.ordinal, Outcome.RENDER_HEADER_CONTROL_CHAR, "the unsubscribe link cannot be written in a header"
        )
