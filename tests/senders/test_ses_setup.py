"""From settings to a sender at SES that works: credentials of every kind, the region, packages, signatures."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import botocore.auth
import botocore.exceptions
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from sendonce.config import ConfigFault, apply_config, load_config, senders_in
from sendonce.delivery.lanes import make_sender, running_lanes
from sendonce.senders.base import Verdict
from sendonce.senders.ses import Ses
from sendonce.senders.ses_account import Account, open_account
from sendonce.stores.opening import init_store
from tests.providers.ses import KEY_ID, REGION, SECRET, FakeSes
from tests.senders.ses_letters import KEYS, NOW_S, packed, request_of, scene, settings


@pytest.fixture(autouse=True)
def nothing_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROFILE", "DEFAULT_PROFILE", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "DEFAULT_REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def accepted_by(sender: Any) -> Verdict:
    try:
        verdict: Verdict = sender.send(sender.prepare(request_of([packed(0)])), 10).verdict
        return verdict
    finally:
        sender.close()


# -- who signs ------------------------------------------------------------------------------------------------------


def test_keys_that_the_settings_point_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_SECRET", SECRET)
    (tmp_path / "id").write_text(f"{KEY_ID}\n")
    with FakeSes(tmp_path / "log") as fake:
        (tmp_path / "sendonce.yaml").write_text(
            f"senders: {{mail: {{adapter: ses, region: {REGION}, endpoint_url: '{fake.url}/', "
            f"access_key_id: file:{tmp_path}/id, secret_access_key: env:THE_SECRET}}}}\n"
            "lanes: {bulk: {sender: mail}}\n"
        )
        store = init_store(f"sqlite:///{tmp_path / 'store.db'}", "production")
        apply_config(store, load_config(tmp_path / "sendonce.yaml", {}), "ann")
        assert accepted_by(running_lanes(store, ("bulk",))["bulk"].sender) is Verdict.ACCEPTED
    assert SECRET not in str(senders_in(store))
    assert SECRET.encode() not in (tmp_path / "store.db").read_bytes()


def test_keys_of_the_environment_with_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "canary-session-token")
    with FakeSes(tmp_path / "log") as fake:
        assert accepted_by(make_sender(settings(endpoint_url=fake.url))) is Verdict.ACCEPTED
    for secret in (SECRET, "canary-session-token"):
        assert secret not in caplog.text


def test_a_profile_names_keys_and_region(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(f"[mail]\naws_access_key_id={KEY_ID}\naws_secret_access_key={SECRET}\n")
    (tmp_path / "config").write_text(f"[profile mail]\nregion={REGION}\n")
    with FakeSes(tmp_path / "log") as fake:
        sender = make_sender(settings(endpoint_url=fake.url, profile="mail", region=None))
        assert accepted_by(sender) is Verdict.ACCEPTED


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {},
            "sender mail: no AWS credentials here; give this job a role or a profile, or set access_key_id and secret_",
        ),
        ({"profile": "gone"}, "sender mail: AWS's settings here have no profile 'gone'; choose one of `aws configure"),
        ({"region": None}, "sender mail: no region; set region to where the account sends from"),
    ],
)
def test_what_is_missing_is_named_with_the_mend(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigFault) as caught:
        make_sender(settings(**fields))
    assert said in str(caught.value)


def test_half_a_key_pair_in_awss_own_files_is_no_surprise(tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(f"[default]\naws_access_key_id={KEY_ID}\n")
    with pytest.raises(ConfigFault, match=r"AWS's settings here cannot be used \(PartialCredentialsError\)"):
        make_sender(settings())


class Renewed:
    """Credentials that come from somewhere, when they do."""

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)

    def get_frozen_credentials(self) -> Any:
        if self.faults:
            raise self.faults.pop(0)
        return Credentials(KEY_ID, SECRET).get_frozen_credentials()


@pytest.mark.parametrize(
    "fault",
    [
        botocore.exceptions.CredentialRetrievalError(provider="process", error_msg=SECRET),
        RuntimeError("the refreshed credentials are still expired"),
        OSError("no route"),
        KeyError("Token"),
    ],
)
def test_without_credentials_nothing_was_sent_and_the_next_try_may_have_them(
    tmp_path: Path, fault: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeSes(tmp_path / "log") as fake:
        sender = Ses(settings(), Account(fake.url, REGION, Renewed(fault)))
        reply = sender.send(sender.prepare(request_of([packed(0)])), 10)
        assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "no_credentials", False)
        assert fake.requests() == []
        assert accepted_by(sender) is Verdict.ACCEPTED
    assert f"cannot sign at the moment: {type(fault).__name__}" in caplog.text
    assert SECRET not in caplog.text


def test_credentials_that_come_too_late_leave_no_time_for_the_call(tmp_path: Path) -> None:
    now_s = 0.0

    class Slow(Renewed):
        def get_frozen_credentials(self) -> Any:
            nonlocal now_s
            now_s += 60
            return super().get_frozen_credentials()

    with FakeSes(tmp_path / "log") as fake:
        sender = Ses(settings(), Account(fake.url, REGION, Slow()), clock=lambda: now_s)
        reply = sender.send(sender.prepare(request_of([packed(0)])), 30)
        sender.close()
        assert (reply.verdict, reply.reason, fake.requests()) == (Verdict.NOT_SENT, "no_time_left", [])


# -- where to, and how it is signed ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("region", "url"),
    [
        ("eu-west-1", "https://email.eu-west-1.amazonaws.com"),
        ("us-gov-west-1", "https://email.us-gov-west-1.amazonaws.com"),
        ("cn-north-1", "https://email.cn-north-1.amazonaws.com.cn"),
    ],
)
def test_a_regions_endpoint(region: str, url: str) -> None:
    account = open_account(settings(region=region), KEYS)
    assert (account.url, account.region) == (url, region)


def test_a_call_is_signed_as_awss_own_signer_does_at_that_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account("https://email.eu-west-1.amazonaws.com", REGION, Credentials(KEY_ID, SECRET, "token"))
    headers = account.signed("/v2/email/outbound-emails", b"{}", NOW_S)

    signed_at = botocore.auth.get_current_datetime().replace(2026, 1, 15, 9, 0, 0)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: signed_at)
    asked = AWSRequest(
        "POST",
        "https://email.eu-west-1.amazonaws.com/v2/email/outbound-emails",
        headers={"Content-Type": "application/json"},
        data=b"{}",
    )
    botocore.auth.SigV4Auth(account.credentials, "ses", REGION).add_auth(asked)
    assert headers == dict(asked.headers.items())
    assert headers["X-Amz-Date"] == "20260115T090000Z"
    assert headers["X-Amz-Security-Token"] == "token"


def test_a_path_before_the_api_is_kept(tmp_path: Path) -> None:
    """Of a gateway, say; what is signed is what is sent."""
    with scene(tmp_path) as there:
        account = open_account(settings(endpoint_url=f"{there.fake.url}/gateway"), KEYS)
        sender = Ses(settings(), account)
        reply = sender.send(sender.prepare(request_of([packed(0)])), 10)
        sender.close()
    assert (reply.reason, reply.halts_sender) == ("http_404", True)  # past the signature, to what knows no such path


# -- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sender", "said"),
    [
        ("access_key_id: env:A", "access_key_id and secret_access_key go together; set both, or leave both out"),
        ("profile: p, access_key_id: env:A, secret_access_key: env:B", "name two accounts; keep one of them"),
        ("access_key_id: AKIAX, secret_access_key: env:B", "access_key_id: must say where the secret stands"),
        ("endpoint_url: http://email.eu-west-1.amazonaws.com", "endpoint_url: must be an https address"),
        ("region: Ireland", "region: "),
        ("configuration_set: a b", "configuration_set: "),
        ("http_503: maybe", "http_503: must be 'unknown' or 'not_sent'"),
        ("api_key: env:K", "api_key: no such setting"),
    ],
)
def test_a_bad_setting_names_the_sender_and_the_mend(tmp_path: Path, sender: str, said: str) -> None:
    (tmp_path / "sendonce.yaml").write_text(f"senders: {{mail: {{adapter: ses, {sender}}}}}\n")
    with pytest.raises(ConfigFault) as caught:
        load_config(tmp_path / "sendonce.yaml", {})
    assert "senders.mail" in str(caught.value)
    assert said in str(caught.value)
    assert "AKIAX" not in str(caught.value)


def test_the_settings_survive_the_store(tmp_path: Path) -> None:
    (tmp_path / "sendonce.yaml").write_text(
        "senders: {mail: {adapter: ses, region: eu-west-1, profile: mail, configuration_set: bulk, parallel: 4, "
        "open_tracking: true, limits: [{rate: 14/s}]}}\n"
    )
    config = load_config(tmp_path / "sendonce.yaml", {})
    store = init_store(f"sqlite:///{tmp_path / 'store.db'}")
    apply_config(store, config, "ann")
    assert senders_in(store) == config.senders


# -- packages -------------------------------------------------------------------------------------------------------


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout


@pytest.mark.parametrize("package", ["httpcore", "botocore"])
def test_a_missing_package_is_named_with_the_mend(package: str) -> None:
    said = python(
        f"import sys; sys.modules[{package!r}] = None\n"
        "from sendonce.config import ConfigFault, SesSettings\n"
        "from sendonce.delivery.lanes import make_sender\n"
        "try: make_sender(SesSettings(name='mail', adapter='ses'))\n"
        "except ConfigFault as fault: print(fault)\n"
    )
    assert said.startswith(f"sender mail: the adapter ses needs the package {package}")
    assert said.endswith("which is not installed; install sendonce[ses]\n")


def test_nothing_of_aws_is_loaded_until_an_account_is_configured() -> None:
    said = python(
        "import sys; import sendonce.delivery.lanes, sendonce.cli.main\n"
        "from sendonce.config import load_config\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('boto3', 'botocore', 'httpcore')])"
    )
    assert said == "[]\n"


def test_boto3_itself_is_not_needed() -> None:
    said = python("import sys; import sendonce.senders.ses; print('boto3' in sys.modules)")
    assert said == "False\n"
