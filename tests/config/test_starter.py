from pathlib import Path

from sendonce.config import load_config
from sendonce.config.starter import STARTER


def test_the_settings_file_of_init_sets_the_defaults(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sendonce.yaml").write_text(STARTER)

    written, default = load_config(Path("sendonce.yaml"), {}), load_config(None, {})

    assert (written.lanes, written.senders, written.templates) == (default.lanes, default.senders, default.templates)
    assert written.store == default.store
