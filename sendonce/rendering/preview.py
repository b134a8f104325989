"""Writes a letter where a person can look at it."""

from pathlib import Path


def write_preview(folder: Path, name: str, texts: tuple[str, str, str]) -> list[Path]:
    """Writes a letter's subject, text and HTML (`Letters.texts`) as NAME.txt and, if there is HTML, NAME.html.

    Returns what was written, what to open first at the front. Makes the folder; replaces an older preview. OSError
    as the file system gives it.
    """
    subject, text, html = texts
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if html:
        written.append(folder / f"{name}.html")
        written[-1].write_text(html, encoding="utf-8")
    else:
        (folder / f"{name}.html").unlink(missing_ok=True)
    written.append(folder / f"{name}.txt")
    written[-1].write_text(f"Subject: {subject}\n\n{text}\n", encoding="utf-8")
    return written
