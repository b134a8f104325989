"""What the tests of rendering share: a template from its parts, recipients from their variables, letters from both."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from schemas.letters import Letters
from schemas.outcomes import Outcome
from sendonce.rendering.catalogue import TemplateSource, source_of
from sendonce.rendering.recipients import Addressee
from sendonce.rendering.render import compile_template, render_batch

CASES = Path(__file__).resolve().parents[1] / "cases"
MANIFEST = "priority: bulk\nfrom: news@shop.example\n"


def template(
    *, subject: str = "Hello", text: str | None = "Text", html: str | None = None, manifest: str = MANIFEST, **more: str
) -> TemplateSource:
    """A template of these parts; `more` holds further files, their names with `__` for a slash and `_j2` for `.j2`."""
    files = {"template.yaml": manifest, "subject.j2": subject, "body.txt.j2": text, "body.html.j2": html}
    files |= {name.replace("__", "/").replace("_j2", ".j2"): body for name, body in more.items()}
    return source_of("sample", {path: body for path, body in files.items() if body is not None})


def person(ordinal: int = 0, variables: Mapping[str, Any] | str = "", **fields: str) -> Addressee:
    text = variables if isinstance(variables, str) else json.dumps(variables)
    known = {
        "message_id": f"m{ordinal}",
        "recipient_id": f"r{ordinal}",
        "to": f"p{ordinal}@one.example",
        "locale": "en",
        "timezone": "UTC",
        "unsubscribe_url": f"https://shop.example/u/{ordinal}",
    }
    return Addressee(ordinal=ordinal, variables=text, **(known | fields))


def render(source: TemplateSource, *variables: Mapping[str, Any] | str, pack: bool = True) -> Letters:
    """The letters of recipients 0, 1, 2 … with these variables."""
    people = [person(ordinal, one) for ordinal, one in enumerate(variables)]
    return render_people(source, people, pack=pack)


def render_people(source: TemplateSource, people: list[Addressee], *, pack: bool = True) -> Letters:
    compiled = compile_template(source)
    letters = render_batch(
        compiled,
        people,
        campaign_id="spring",
        from_address="news@shop.example",
        reply_to="help@shop.example",
        pack=pack,
    )
    # The self-check would hide a fault of packing: such a letter goes out whole and right.
    assert compiled.stats.mismatches == 0
    return letters


def results(letters: Letters) -> dict[int, tuple[str, str, str] | Outcome]:
    """Ordinal to texts or outcome."""
    found: dict[int, tuple[str, str, str] | Outcome] = {
        letter.ordinal: letters.texts(letter) for letter in letters.letters
    }
    return found | {refusal.ordinal: Outcome(refusal.outcome) for refusal in letters.refusals}
