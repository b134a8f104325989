"""How fast messages are made: `python -m benchmarks.mime [--letters N] [--runs N] [--json]`.

The shipped newsletter, rendered for each recipient, as whole messages in bytes, three ways: `compiled` (the form letter
once, its slots for each), `plain` (assembled for each), `email` (the standard library's `EmailMessage` for each). The
first two give the same bytes; the third the same subject, texts and headers, which is checked for one letter. Medians
of the runs, in turn. `--json` ends with one line of JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser

from schemas.ids import attempt_id
from schemas.letters import Letter, Letters
from sendonce.rendering.catalogue import find_template
from sendonce.rendering.recipients import Addressee
from sendonce.rendering.render import compile_template, render_batch
from sendonce.senders import mime, mime_forms

ATTEMPT = attempt_id(1_768_467_600_000, bytes(10))
DATE = "Thu, 15 Jan 2026 09:00:00 +0000"


def newsletter(letters: int) -> Letters:
    people = [
        Addressee(
            ordinal=number,
            message_id=f"{number:052d}",
            recipient_id=f"r{number}",
            to=f"u{number}@one.example",
            locale="en",
            timezone="UTC",
            unsubscribe_url=f"https://shop.example/u/{number}",
            variables=json.dumps({"name": f"Ann {number}", "points": number}),
        )
        for number in range(letters)
    ]
    compiled = compile_template(find_template("newsletter"))
    found = render_batch(
        compiled, people, campaign_id="spring", from_address="Shop <news@shop.example>", reply_to="help@shop.example"
    )
    assert len(found.letters) == letters
    assert all(letter.form is not None for letter in found.letters)
    return found


def compiled(letters: Letters, letter: Letter) -> bytes:
    assert letter.form is not None
    form = mime_forms.compiled(letters.forms[letter.form], letters.from_address, letters.reply_to)
    return form.fill(
        letter.values,
        to=letter.to,
        message_id=letter.message_id,
        attempt_id=ATTEMPT,
        unsubscribe_url=letter.unsubscribe_url,
    )


def plain(letters: Letters, letter: Letter) -> bytes:
    subject, text, html = letters.texts(letter)
    return mime.message(
        from_address=letters.from_address,
        reply_to=letters.reply_to,
        to=letter.to,
        subject=subject,
        text=text,
        html=html,
        message_id=letter.message_id,
        attempt_id=ATTEMPT,
        unsubscribe_url=letter.unsubscribe_url,
    )


def by_email(letters: Letters, letter: Letter) -> bytes:
    subject, text, html = letters.texts(letter)
    message = EmailMessage(policy=policy.SMTP)
    message["From"], message["To"], message["Subject"] = letters.from_address, letter.to, subject
    message["Date"], message["Message-ID"] = DATE, f"<{letter.message_id}@shop.example>"
    message["Reply-To"] = letters.reply_to
    message["List-Unsubscribe"] = f"<{letter.unsubscribe_url}>"
    message["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
    message.set_content(text, cte="8bit")
    message.add_alternative(html, subtype="html", cte="8bit")
    return message.as_bytes()


WAYS: dict[str, Callable[[Letters, Letter], bytes]] = {"compiled": compiled, "plain": plain, "email": by_email}


def measure(letters: int, runs: int) -> dict[str, float]:
    """Microseconds of CPU for a letter, by way, and how many times as long the standard library takes."""
    everything = newsletter(letters)
    first = everything.letters[0]
    assert compiled(everything, first) == plain(everything, first)
    assert _read(plain(everything, first)) == _read(by_email(everything, first))
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(runs):
        for way, make in WAYS.items():
            began_s = time.process_time()
            for letter in everything.letters:
                make(everything, letter)
            took[way].append((time.process_time() - began_s) * 1e6 / letters)
    found = {f"{way}_us": round(statistics.median(times), 1) for way, times in took.items()}
    times_as_fast = round(found["email_us"] / found["compiled_us"], 1)
    size = len(compiled(everything, first))
    return {"letters": letters, "bytes": size, **found, "times_as_fast": times_as_fast}


def _read(raw: bytes) -> tuple[str, ...]:
    message = BytesParser(policy=policy.default).parsebytes(raw)
    assert isinstance(message, EmailMessage)
    parts = (message.get_body((kind,)) for kind in ("plain", "html"))
    texts = (part.get_content().replace("\r\n", "\n") if part is not None else "" for part in parts)
    return (str(message["Subject"]), str(message["To"]), str(message["List-Unsubscribe"]), *texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--letters", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    options = parser.parse_args()
    found = measure(options.letters, options.runs)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:>14} {value:,}")


if __name__ == "__main__":
    main()
