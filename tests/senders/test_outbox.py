"""The outbox: whole files or none, the same request the same file, and honest words about failures."""

import errno
import mailbox
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.ids import attempt_id
from schemas.letters import FormLetter, Letter, Letters, slot_key
from schemas.outcomes import Outcome
from sendonce.control.stops import mend_of
from sendonce.senders.base import Request, Unsendable, Verdict
from sendonce.senders.outbox import Outbox

ATTEMPT = attempt_id(1_768_467_600_000, bytes(10))
FORM = FormLetter("px", 1, f"Hi {slot_key('px', 0)}", f"Dear {slot_key('px', 0)}\n", f"<p>{slot_key('px', 0)}</p>\n")


def request_of(count: int, attempt: str = ATTEMPT, first: int = 0) -> Request:
    letters = [
        Letter(ordinal, f"{ordinal:052d}", f"u{ordinal}@one.example", "", form=0, values=[f"Ann {ordinal}"])
        for ordinal in range(first, first + count)
    ]
    return Request("spring", 42, attempt, Letters("Shop <news@shop.example>", "", [FORM], letters, []), letters)


def send(outbox: Outbox, request: Request):  # type: ignore[no-untyped-def]
    return outbox.send(outbox.prepare(request), 5.0)


def letters_in(folder: Path) -> list[mailbox.mboxMessage]:
    return [message for path in sorted(folder.rglob("*.mbox")) for message in mailbox.mbox(path, create=False)]


def test_a_request_is_one_file_that_the_standard_library_reads(tmp_path: Path) -> None:
    outbox = Outbox("outbox", tmp_path / "box")
    reply = send(outbox, request_of(3))
    assert reply.verdict is Verdict.ACCEPTED
    (path,) = (tmp_path / "box" / "spring").iterdir()
    assert path.name.startswith("batch-000042.ordinals-0000-0002.")
    assert reply.provider_ref == path.name
    messages = letters_in(tmp_path)
    assert [message["To"] for message in messages] == ["u0@one.example", "u1@one.example", "u2@one.example"]
    assert [message["Subject"] for message in messages] == ["Hi Ann 0", "Hi Ann 1", "Hi Ann 2"]
    assert {message["X-Sendonce-Attempt"] for message in messages} == {ATTEMPT}


def test_the_same_request_again_replaces_the_file(tmp_path: Path) -> None:
    outbox = Outbox("outbox", tmp_path)
    send(outbox, request_of(3))
    first = {path: path.read_bytes() for path in tmp_path.rglob("*.mbox")}
    send(outbox, request_of(3))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.mbox")} == first


def test_other_ordinals_are_another_file_even_with_the_same_ends(tmp_path: Path) -> None:
    outbox = Outbox("outbox", tmp_path)
    whole = request_of(3)
    gap = Request(whole.campaign_id, 42, ATTEMPT, whole.letters, [whole.chosen[0], whole.chosen[2]])
    assert outbox.path_of(whole) != outbox.path_of(gap)


def test_the_hash_is_of_the_bytes_and_the_same_for_the_same_request(tmp_path: Path) -> None:
    outbox = Outbox("outbox", tmp_path)
    assert outbox.prepare(request_of(3)).payload_hash == outbox.prepare(request_of(3)).payload_hash
    later = attempt_id(1_768_467_600_001, bytes(10))
    assert outbox.prepare(request_of(3)).payload_hash != outbox.prepare(request_of(3, later)).payload_hash


def test_a_letter_with_a_bent_header_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    request = request_of(2)
    bent = Letter(1, "1" * 52, "u1@one.example\r\nRCPT TO:<evil@x.example>", "", subject="Hi", text="x")
    with pytest.raises(Unsendable) as caught:
        Outbox("outbox", tmp_path).prepare(Request("spring", 42, ATTEMPT, request.letters, [request.chosen[0], bent]))
    assert (caught.value.ordinal, caught.value.outcome) == (1, Outcome.RENDER_HEADER_CONTROL_CHAR)
    assert "evil" not in caught.value.detail


def test_a_folder_that_cannot_be_written_is_not_sent_and_needs_a_person(tmp_path: Path) -> None:
    (tmp_path / "box").write_text("a file where the folder should be")
    reply = send(Outbox("outbox", tmp_path / "box"), request_of(1))
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "not_a_folder", True)


OURS = ["ENAMETOOLONG", "EFBIG", "EIO", "ELOOP", "EMFILE", "ENFILE", "ESTALE", "ENOENT", "ENXIO", "ETIMEDOUT"]


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("step", ["mkdir", "open", "fsync", "rename"])
def test_a_fault_of_our_own_disk_halts_the_sender_and_refuses_nobody(
    name: str, step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path that was too long made every recipient of a campaign `refused`."""

    def fail(*args: object, **options: object) -> None:
        raise OSError(getattr(errno, name), "made to fail")

    place = {"mkdir": "pathlib.Path.mkdir", "open": "builtins.open", "fsync": "os.fsync", "rename": "os.rename"}[step]
    outbox = Outbox("outbox", tmp_path / "box")
    prepared = outbox.prepare(request_of(1))
    with monkeypatch.context() as broken:
        broken.setattr(place, fail)
        reply = outbox.send(prepared, 5.0)
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, f"os_{name.lower()}", True)
    assert mend_of(reply.reason) != mend_of("nothing that is known")
    assert list(tmp_path.rglob("*mbox*")) == []
    assert outbox.send(prepared, 5.0).verdict is Verdict.ACCEPTED


def test_paths_that_cannot_stand_halt_the_sender(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    for path, reason in (("x" * 300, "os_enametoolong"), ("circle/box", "os_eloop")):
        reply = send(Outbox("outbox", tmp_path / path), request_of(1))
        assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, reason, True)


def test_the_longest_name_of_a_campaign_makes_a_file(tmp_path: Path) -> None:
    request = replace(request_of(1), campaign_id="c" * 100, batch_no=10**9)
    assert send(Outbox("outbox", tmp_path), request).verdict is Verdict.ACCEPTED


def test_letters_whose_folder_cannot_be_synced_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Too many open files after the rename: the letters stand, and a fault would make a doubt of them."""

    def fail(*args: object) -> int:
        raise OSError(errno.EMFILE, "made to fail")

    prepared = (outbox := Outbox("outbox", tmp_path)).prepare(request_of(1))
    monkeypatch.setattr("os.open", fail)
    assert outbox.send(prepared, 5.0).verdict is Verdict.ACCEPTED


def test_a_full_disk_is_not_sent_and_leaves_no_file(tmp_path: Path) -> None:
    """A limit on file size stands in for a full disk: the write itself fails, in a process of its own."""
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "from pathlib import Path; from tests.senders.test_outbox import *\n"
        "reply = send(Outbox('outbox', Path(sys.argv[1])), request_of(50))\n"
        "print(reply.verdict.value, reply.reason, reply.halts_sender)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["not_sent", "os_efbig", "True"]
    assert list(tmp_path.rglob("*mbox*")) == []


@pytest.mark.parametrize(("point", "files"), [("S4", 0), ("S5", 1)])
def test_a_kill_leaves_a_whole_file_or_none(tmp_path: Path, point: str, files: int) -> None:
    script = (
        "import sys; from pathlib import Path; from tests.senders.test_outbox import *\n"
        "send(Outbox('outbox', Path(sys.argv[1])), request_of(20))\n"
    )
    environment = {**os.environ, "SENDONCE_FAILPOINT": f"{point}:kill9"}
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(list(tmp_path.rglob("*.mbox"))) == files
    assert len(letters_in(tmp_path)) == 20 * files
    send(Outbox("outbox", tmp_path), request_of(20))
    assert len(letters_in(tmp_path)) == 20
