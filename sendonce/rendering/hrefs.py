"""Links that come out of variables: escaping does not stop `javascript:`, so their scheme is looked at.

Which written expressions begin a link is read off the template: those that stand right behind `href="` and its
like. Wherever in a template such an expression stands, what it writes is checked for each recipient.
"""

import html
import re
from collections.abc import Iterable
from typing import Final

from jinja2 import nodes

from sendonce.rendering.values import LINK_SCHEMES

# Attributes that mail clients follow or load (HTML standard, "attributes" index: those that hold a URL).
_OPENS_LINK: Final = re.compile(
    r"""[\s"'/](?:href|src|action|formaction|background|poster|cite|longdesc|xlink:href)\s*=\s*["']?\s*\Z""",
    re.IGNORECASE,
)
_TAIL: Final = 64
# Browsers skip these before and inside a scheme (WHATWG URL, "basic URL parser", steps 1 to 3).
_SKIPPED: Final = re.compile(r"[\x00-\x20]+")
_SCHEME: Final = re.compile(r"([a-z][a-z0-9+.-]*):", re.IGNORECASE)


class UnsafeLink(Exception):
    """A link out of a variable has a scheme that is not allowed."""

    def __init__(self) -> None:
        super().__init__(f"a link that is not {', '.join(LINK_SCHEMES)}")


def check_link(written: str) -> str:
    """What is written at the beginning of a link, as it is; UnsafeLink if it brings a scheme of its own that is not

    http, https or mailto. Escaped text is read as a browser reads it.
    """
    if "&" not in written and written.startswith(("https://", "http://")):
        return written
    scheme = _SCHEME.match(_SKIPPED.sub("", html.unescape(written)))
    if scheme is not None and scheme.group(1).lower() not in LINK_SCHEMES:
        raise UnsafeLink
    return written


def link_beginnings(tree: nodes.Template) -> list[nodes.Expr]:
    """The written expressions of a file that begin a link."""
    found: list[nodes.Expr] = []
    _walk(tree.body, "", found)
    return found


def _walk(body: Iterable[nodes.Node], tail: str, found: list[nodes.Expr]) -> str:
    """Goes through `body` in the order of the text; `tail` is the text before it, the result the text at its end."""
    for node in body:
        match node:
            case nodes.Output():
                for child in node.nodes:
                    if isinstance(child, nodes.TemplateData):
                        tail = (tail + child.data)[-_TAIL:]
                    else:
                        if _OPENS_LINK.search(tail):
                            found.append(child)
                        tail = ""
            case nodes.If():
                branches = [node.body, *(branch.body for branch in node.elif_), node.else_]
                tails = [_walk(branch, tail, found) for branch in branches]
                tail = next((end for end in tails if _OPENS_LINK.search(end)), tails[0])
            case nodes.Macro() | nodes.AssignBlock():
                _walk(node.body, "", found)
            case nodes.Stmt():
                _walk(getattr(node, "else_", []), tail, found)
                tail = _walk(getattr(node, "body", []), tail, found)
    return tail
