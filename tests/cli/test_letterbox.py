from pathlib import Path

from sendonce.cli.letterbox import Letterbox, look_into

ONE = "From a@b.example Thu Jan 15 09:00:00 2026\nMessage-ID: <{name}@b.example>\nSubject: x\n\n{body}\n\n"


def test_letters_are_counted_by_their_headers_alone(tmp_path: Path) -> None:
    body = "Message-ID: <quoted@b.example>\n>From here on\nFrom the start"
    (tmp_path / "a.mbox").write_text(ONE.format(name="1", body=body) + ONE.format(name="2", body=""))
    (tmp_path / "b.mbox").write_text(ONE.format(name="2", body="again") + ONE.format(name="3", body=""))
    (tmp_path / ".c.mbox.7.tmp").write_text(ONE.format(name="9", body="half written"))

    assert look_into(tmp_path) == Letterbox(files=2, letters=4, duplicates=1)


def test_an_outbox_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert look_into(tmp_path / "nowhere") == Letterbox(0, 0, 0)
