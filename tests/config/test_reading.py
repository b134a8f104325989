import os
import re
from pathlib import Path

import pytest

from sendonce.config import Config, ConfigFault, config_path, load_config


def write(folder: Path, text: str) -> Path:
    path = folder / "sendonce.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def fault(folder: Path, text: str) -> str:
    with pytest.raises(ConfigFault) as caught:
        load_config(write(folder, text), {})
    return str(caught.value)


def test_without_a_file_the_defaults_make_three_lanes_that_send_to_the_outbox() -> None:
    config = load_config(None, {})

    assert list(config.lanes) == ["critical", "high", "bulk"]
    assert {lane.sender for lane in config.lanes.values()} == {"outbox"}
    assert config.senders["outbox"].path == str(Path(".sendonce/outbox").absolute())
    assert [lane.in_doubt for lane in config.lanes.values()] == ["hold", "hold", "assume"]


def test_a_lane_keeps_the_defaults_it_does_not_set(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "lanes: {bulk: {batch_size: 5000}}"), {})

    assert (config.lanes["bulk"].batch_size, config.lanes["bulk"].in_doubt) == (5000, "assume")
    assert config.lanes["critical"].batch_size == 100


def test_lanes_without_a_sender_use_the_first_one_of_the_file(tmp_path: Path) -> None:
    text = "senders: {letters: {adapter: outbox, path: out}, spare: {adapter: outbox, path: spare}}"

    assert load_config(write(tmp_path, text), {}).lanes["high"].sender == "letters"


def test_the_option_wins_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "store: sqlite:////file.db")
    environ = {"SENDONCE_STORE": "sqlite:////environ.db"}

    assert load_config(path, {}).store == "sqlite:////file.db"
    assert load_config(path, environ).store == "sqlite:////environ.db"
    assert load_config(path, environ, store="sqlite:////option.db").store == "sqlite:////option.db"


def test_relative_paths_count_from_the_folder_of_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "store: sqlite:///s.db\ntemplates: [letters]\nsenders: {o: {adapter: outbox, path: out}}")

    config = load_config(path, {})

    assert config.store == f"sqlite:///{tmp_path / 's.db'}"
    assert config.template_folders() == [tmp_path / "letters"]
    assert config.senders["o"].path == str(tmp_path / "out")


def test_the_file_is_the_option_then_the_environment_then_the_one_in_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_path(None, {}) is None

    write(tmp_path, "")
    assert config_path(None, {}) == Path("sendonce.yaml")
    assert config_path(None, {"SENDONCE_CONFIG": "b.yaml"}) == Path("b.yaml")
    assert config_path("a.yaml", {"SENDONCE_CONFIG": "b.yaml"}) == Path("a.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("strore: x", "line 1: strore: no such setting; did you mean store?"),
        (
            "\nlanes:\n  bulk:\n    batchsize: 7",
            "line 4: lanes.bulk.batchsize: no such setting; did you mean batch_s",
        ),
        ("lanes:\n  bulk: {batch_size: 5001}", "line 2: lanes.bulk.batch_size: Input should be less than"),
        ("lanes: {fast: {}}", "line 1: lanes.fast: must be 'critical', 'high' or 'bulk'"),
        ("lanes: {bulk: {in_doubt: maybe}}", "lanes.bulk.in_doubt: must be 'hold', 'assume' or 'resend'"),
        ("lanes: {bulk: {sender: ses}}", "lane bulk names the sender 'ses', which is not under senders (outbox)"),
        ("lanes: {bulk: {limits: [{rate: 500}]}}", "500 is not a limit; write recipients per time, like 500/s"),
        ("lanes: {bulk: {limits: [{rate: 5/fortnight}]}}", "'5/fortnight' is not a limit"),
        ("lanes: {bulk: {limits: [{rate: 0/s}]}}", "'0/s' lets nothing through"),
        ("lanes: {bulk: {limits: [{rate: 5/s, cap: 9/day}]}}", "either rate or cap"),
        ("lanes: {bulk: {limits: [{cap: 9/day, burst: 2}]}}", "burst goes with rate"),
        ("lanes: {bulk: {limits: [{rate: 5/s}, {rate: 6/s}]}}", "rate is set twice"),
        ("lanes: {bulk: {limits: [{cap: 60/min}, {cap: 9/60s}]}}", "cap:60 is set twice"),
        ("senders: {o: {adapter: pigeon}}", "senders.o.adapter: must be 'outbox' or 'sendgrid'"),
        ("senders: {o: {path: x}}", "senders.o.adapter: is missing"),
        ('from: "Shop <news>"', "from: must be one address"),
        ('from: "a@b.example\\nBcc: c@d.example"', "from: must be one address"),
        ('from: "x@y.example, z@y.example"', "is more than one address"),
        ('from: "Bob <bob@evil.example> <news@shop.example>"', "is more than one address"),
        ("from: j\u00f6rg@shop.example", "beyond ASCII before the @-sign"),
        ("from: news@localhost", "from: must be one address"),
        ("unsubscribe: {base_url: http://shop.example/u}", "unsubscribe.base_url: must be an https address"),
        ("store: mysql://x", "line 1: store: must be a store URL, sqlite:///relative/path or sqlite:////absolute/path"),
        ("store: a\nstore: b", "line 2: store is set twice; keep one"),
        ("lanes: {bulk: [", "not valid YAML"),
        ("- a list", "line 1: holds no settings"),
    ],
)
def test_a_bad_setting_names_the_line_the_setting_and_the_mend(tmp_path: Path, text: str, said: str) -> None:
    message = fault(tmp_path, text)

    assert said in message
    assert message.startswith(str(tmp_path / "sendonce.yaml"))


def test_every_problem_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    message = fault(tmp_path, "strore: x\nlanes: {bulk: {shards: 0}}")

    assert [line.split(": ")[1] for line in message.splitlines()] == ["lanes.bulk.shards", "strore"]


def test_a_file_that_cannot_be_read_is_named_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ConfigFault, match=r"nowhere\.yaml: no such file; `sendonce init` writes one"):
        load_config(tmp_path / "nowhere.yaml", {})

    odd = tmp_path / "odd.yaml"
    odd.write_bytes(b"from: Zo\xeb <zoe@one.example>")
    with pytest.raises(ConfigFault, match=r"odd\.yaml: not UTF-8 text"):
        load_config(odd, {})


def test_http_is_taken_for_loopback_only(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "unsubscribe: {base_url: http://127.0.0.1:8080/u/}"), {})

    assert config.unsubscribe is not None
    assert config.unsubscribe.base_url == "http://127.0.0.1:8080/u"


def test_limits_become_rows_in_recipients_and_seconds(tmp_path: Path) -> None:
    text = "lanes: {bulk: {limits: [{rate: 30/min}, {cap: 100000/day}, {cap: 10/5s}]}}"
    limits = load_config(write(tmp_path, text), {}).lanes["bulk"].limits

    rate, day, five = (limit.row("lane:bulk") for limit in limits)

    assert (rate.scope, rate.name, rate.kind, rate.per_s, rate.burst) == ("lane:bulk", "rate", "rate", 0.5, 1)
    assert (day.name, day.kind, day.most, day.window_s) == ("cap:86400", "cap", 100_000, 86_400.0)
    assert (five.name, five.most, five.window_s) == ("cap:5", 10, 5.0)


def test_a_config_survives_being_written_and_read_as_json() -> None:
    config = load_config(None, {})

    assert Config.model_validate_json(config.model_dump_json(by_alias=True)) == config


def test_the_address_to_send_from_is_kept_as_it_goes_out(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, 'from: "Zo\u00eb\u00a0Plus <news@b\u00fccher.example>"'), {})

    assert config.from_address == "Zo\u00eb\u00a0Plus <news@xn--bcher-kva.example>"


@pytest.mark.parametrize(
    "text",
    [
        "store: &a [*a]",
        "senders: &a {o: *a}",
        "templates: &t [t, *t]",
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "\n".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 10)}]" for n in range(8)),
    ],
)
def test_an_alias_without_end_is_a_fault_with_its_line(tmp_path: Path, text: str) -> None:
    assert re.search(r"line \d+: not usable YAML \(an alias that repeats without end\)", fault(tmp_path, text))


def test_settings_nested_too_deeply_are_a_fault(tmp_path: Path) -> None:
    assert "nested too deeply" in fault(tmp_path, "a: " + "[" * 5000)


def test_an_outbox_that_the_store_cannot_name_is_a_fault(tmp_path: Path) -> None:
    """The store keeps settings as JSON, which holds UTF-8 only."""
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()

    assert "senders.outbox.path: must be UTF-8" in fault(folder, "from: news@shop.example")


def test_a_bad_store_url_is_put_down_to_where_it_was_given(tmp_path: Path) -> None:
    path = write(tmp_path, "from: news@shop.example")

    with pytest.raises(ConfigFault, match=r"^--store: must be a store URL"):
        load_config(path, {}, store="mysql://x")
    with pytest.raises(ConfigFault, match=r"^SENDONCE_STORE: must be a store URL"):
        load_config(path, {"SENDONCE_STORE": "mysql://x"})
