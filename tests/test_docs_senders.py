"""docs/senders.md: every adapter and every setting is there, and its examples are settings that are taken."""

import re
from contextlib import closing
from pathlib import Path

import pytest

from sendonce.config import load_config
from sendonce.config.adapters import SETTINGS
from sendonce.config.adapters.account import SenderSettings
from sendonce.delivery.lanes import make_sender
from tests.providers.webhook import SECRET

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "senders.md").read_text("utf-8")
SECTIONS: dict[str, str] = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
EVERYWHERE = {"adapter", *SenderSettings.model_fields}
DEFAULT = re.compile(r"; ([\d,]+|`\w+`)(?:,|$| )")


def example_of(adapter: str, folder: Path) -> SenderSettings:
    (example,) = re.findall(r"^```yaml\n(.*?)^```", SECTIONS[adapter], re.MULTILINE | re.DOTALL)
    (folder / "sendonce.yaml").write_text(f"from: Shop <news@shop.example>\n{example}", "utf-8")
    (sender,) = load_config(folder / "sendonce.yaml", {}).senders.values()
    return sender


@pytest.mark.parametrize("adapter", SETTINGS)
def test_an_example_is_taken(adapter: str, tmp_path: Path) -> None:
    assert example_of(adapter, tmp_path).adapter == adapter


@pytest.mark.parametrize("adapter", SETTINGS)
def test_every_setting_is_named_and_no_other(adapter: str) -> None:
    fields = set(SETTINGS[adapter].model_fields) - EVERYWHERE
    rows = re.findall(r"^\| (`[^|]+`) \|", SECTIONS[adapter], re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    told = named or {name for name in fields if f"`{name}`" in SECTIONS[adapter]}
    assert told == fields


@pytest.mark.parametrize("adapter", SETTINGS)
def test_a_number_or_word_after_a_semicolon_is_the_default(adapter: str) -> None:
    checked = 0
    for name, text in re.findall(r"^\| `(\w+)` \| (.*?) \|$", SECTIONS[adapter], re.MULTILINE):
        if found := DEFAULT.search(text):
            told = found[1].strip("`").replace(",", "")
            assert told == str(SETTINGS[adapter].model_fields[name].default), name
            checked += 1
    assert checked or adapter == "outbox"


@pytest.mark.needs("aiosmtplib", "botocore", "httpcore", "sendgrid")
def test_the_table_names_all_and_says_which_settle_doubts_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SENDGRID_API_KEY", "RESEND_API_KEY", "SMTP_USER", "SMTP_PASSWORD"):
        monkeypatch.setenv(name, "made-up")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAMADEUP")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "made-up")
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    told = {name: "by itself" in row for name, row in re.findall(r"^\| \[`(\w+)`\](.*)$", PAGE, re.MULTILINE)}
    assert set(told) == set(SETTINGS)
    for name, settles in told.items():
        with closing(make_sender(example_of(name, tmp_path))) as sender:
            assert settles is (sender.capabilities.idempotency_window_s is not None), name
