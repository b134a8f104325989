"""The senders of `sendonce.yaml`: each adapter's own settings, and secrets that are only ever referred to."""

from pathlib import Path
from typing import ClassVar, Literal, Optional

import pytest

from sendonce.config import (
    ConfigFault,
    OutboxSettings,
    SenderSettings,
    SendGridSettings,
    apply_config,
    load_config,
    reading,
    senders_in,
)
from sendonce.config.secrets import resolve
from sendonce.stores.opening import init_store

KEY = "SG.canary-key"


def write(folder: Path, sender: str) -> Path:
    path = folder / "sendonce.yaml"
    path.write_text(f"senders:\n  mail: {{{sender}}}\n", encoding="utf-8")
    return path


def fault(folder: Path, sender: str) -> str:
    with pytest.raises(ConfigFault) as caught:
        load_config(write(folder, sender), {})
    return str(caught.value)


def test_a_sendgrid_account_with_its_defaults(tmp_path: Path) -> None:
    (sender,) = load_config(write(tmp_path, "adapter: sendgrid, api_key: env:SENDGRID_API_KEY"), {}).senders.values()

    assert isinstance(sender, SendGridSettings)
    assert (sender.name, sender.api_key, sender.base_url) == (
        "mail",
        "env:SENDGRID_API_KEY",
        "https://api.sendgrid.com",
    )
    assert (sender.click_tracking, sender.open_tracking, sender.sandbox, sender.http_503) == (
        False,
        False,
        False,
        "unknown",
    )


def test_both_kinds_of_senders_survive_the_store(tmp_path: Path) -> None:
    path = tmp_path / "sendonce.yaml"
    path.write_text(
        "senders:\n"
        "  box: {adapter: outbox, path: out}\n"
        "  mail: {adapter: sendgrid, api_key: file:/run/secrets/key, base_url: http://127.0.0.1:9/, sandbox: true,\n"
        "    categories: [spring], asm_group: 7, ip_pool: news, send_after_s: 900, batch_id: b1, parallel: 3,\n"
        "    limits: [{rate: 500/s}]}\n"
        "lanes: {bulk: {sender: mail}}\n",
        encoding="utf-8",
    )
    config = load_config(path, {})
    store = init_store(f"sqlite:///{tmp_path / 'store.db'}")
    apply_config(store, config, "ann")

    assert senders_in(store) == config.senders
    assert [type(sender) for sender in senders_in(store).values()] == [OutboxSettings, SendGridSettings]
    assert config.senders["mail"].base_url == "http://127.0.0.1:9"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("sender", "said"),
    [
        ("adapter: pigeon", "line 2: senders.mail.adapter: must be 'outbox' or "),
        ("path: x", "line 2: senders.mail.adapter: is missing; set it"),
        ("adapter: sendgrid", "line 2: senders.mail.api_key: is missing; set it"),
        ("adapter: sendgrid, api_key: env:K, path: x", "line 2: senders.mail.path: no such setting; known: "),
        (
            "adapter: sendgrid, api_key: env:K, categorys: [x]",
            "senders.mail.categorys: no such setting; did you mean c",
        ),
        (
            "adapter: outbox, api_key: env:K",
            "senders.mail.api_key: no such setting; known: limits, warm_up, adapter, path",
        ),
        ("adapter: sendgrid, api_key: env:K, base_url: http://api.sendgrid.com", "base_url: must be an https address"),
        ("adapter: sendgrid, api_key: env:K, categories: [a, a]", "categories: must name each category once"),
        ("adapter: sendgrid, api_key: env:K, batch_id: b", "set send_after_s too, or leave batch_id out"),
        ("adapter: sendgrid, api_key: env:K, send_after_s: 259200", "send_after_s: Input should be less than"),
        ("adapter: sendgrid, api_key: env:K, asm_group: 0", "asm_group: Input should be greater than"),
        ("adapter: sendgrid, api_key: env:K, ip_pool: x", "ip_pool: String should have at least 2"),
        ("adapter: sendgrid, api_key: env:K, http_503: maybe", "http_503: must be 'unknown' or 'not_sent'"),
        ("adapter: sendgrid, api_key: env:K, limits: [{rate: 5}]", "5 is not a limit"),
    ],
)
def test_a_bad_setting_names_the_sender_and_the_mend(tmp_path: Path, sender: str, said: str) -> None:
    assert said in fault(tmp_path, sender)


@pytest.mark.parametrize("text", [KEY, f"env:{KEY}", "file:relative/key", "env:", "file:", "secret:x"])
def test_a_key_in_the_file_is_refused_and_never_repeated(tmp_path: Path, text: str) -> None:
    message = fault(tmp_path, f"adapter: sendgrid, api_key: '{text}'")

    assert "senders.mail.api_key: must say where the secret stands, env:NAME or file:/path" in message
    assert KEY not in message


def test_a_name_that_is_not_plain_is_still_told_as_such(tmp_path: Path) -> None:
    path = tmp_path / "sendonce.yaml"
    path.write_text("senders: {my mail: {adapter: outbox}}\n", encoding="utf-8")
    with pytest.raises(ConfigFault, match=r"senders\.my mail: must be a plain name"):
        load_config(path, {})


def test_a_secret_is_read_from_where_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(f"{KEY}\n")

    assert resolve("env:K", sender="mail", setting="api_key", environ={"K": KEY}) == KEY
    assert resolve(f"file:{file}", sender="mail", setting="api_key", environ={}) == KEY


@pytest.mark.parametrize(
    ("reference", "content", "said"),
    [
        ("env:K", None, "its api_key is env:K, and no such variable is set here; set K where this job starts"),
        ("env:EMPTY", None, "its api_key is env:EMPTY, which is empty; write the secret into it"),
        ("env:TWO", None, "which holds more than a secret"),
        ("file", None, "which cannot be read (No such file or directory); check the path and who may read it"),
        ("file", b"\xff\xfe", "which is not text; write the secret alone into it"),
        ("file", b" \n", "which is empty"),
        ("file", f"{KEY}\nX: y".encode(), "which holds more than a secret"),
        ("file", "SG.schlüssel".encode(), "which holds more than a secret"),
    ],
)
def test_a_secret_that_cannot_be_had_is_named_without_its_value(
    tmp_path: Path, reference: str, content: bytes | None, said: str
) -> None:
    if reference == "file":
        reference = f"file:{tmp_path / 'key'}"
        if content is not None:
            (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigFault) as caught:
        resolve(reference, sender="mail", setting="api_key", environ={"EMPTY": "", "TWO": f"{KEY} {KEY}"})

    message = str(caught.value)
    assert message.startswith(f"sender mail: its api_key is {reference}, ")
    assert said in message
    assert "canary" not in message
    assert "schl" not in message


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("x" * 256, "has a name of 256 bytes; a folder's name has at most 255"),
        ("é" * 128, "has a name of 256 bytes"),
        ("x/" * 2000, "is longer than 3585 bytes; choose a shorter path"),
    ],
)
def test_an_outbox_that_no_disk_can_hold_is_refused(tmp_path: Path, path: str, problem: str) -> None:
    assert problem in fault(tmp_path, f"adapter: outbox, path: {path}")


def test_an_outbox_of_the_longest_name_is_taken(tmp_path: Path) -> None:
    (sender,) = load_config(write(tmp_path, f"adapter: outbox, path: {'x' * 255}"), {}).senders.values()
    assert sender.path.endswith("/" + "x" * 255)  # type: ignore[union-attr]


def test_paths_count_from_the_folder_of_the_file_whatever_the_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A guide's reader had a file in every folder from which a command was started."""

    class Lines(SenderSettings):
        paths: ClassVar[tuple[str, ...]] = ("file", "other")

        adapter: Literal["lines"]
        file: str = "letters.jsonl"
        other: Optional[str] = None

    monkeypatch.setitem(reading.SETTINGS, "lines", Lines)
    found = reading._anchored({"senders": {"a": {"adapter": "lines"}, "b": {"adapter": 5}, "c": "x"}}, tmp_path)
    assert found["senders"] == {
        "a": {"adapter": "lines", "file": str(tmp_path / "letters.jsonl")}, "b": {"adapter": 5}, "c": "x"
    }  # fmt: skip
