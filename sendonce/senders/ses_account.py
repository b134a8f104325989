"""Who signs a call to SES, where it goes, and its signature: botocore's part, AWS's own core for Python.

Only what makes no call for a letter is taken from it. Its client repeats calls by itself (a second letter), and raises
one exception class for a call that was never read and one whose answer was lost.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import botocore.exceptions
import botocore.session
from botocore.auth import SIGV4_TIMESTAMP, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config as ClientConfig

from sendonce.config import ConfigFault, SesSettings
from sendonce.config.urls import base_url_problem

_SIGNING_NAME: Final = "ses"
# At DEBUG it writes out what it signs, a session's token among it.
logging.getLogger("botocore.auth").setLevel(logging.INFO)


class NotSigned(Exception):
    """There are no credentials at the moment; nothing was sent. The message is for logs, and holds no secret."""


@dataclass(frozen=True)
class Account:
    """url: where calls go, without a slash at its end. credentials: botocore's, which renew themselves."""

    url: str
    region: str
    credentials: Any

    def signed(self, path: str, body: bytes, at_s: float) -> dict[str, str]:
        """The headers of a POST of `body` (JSON), signed at `at_s`, Unix seconds. NotSigned without credentials.

        Signature Version 4: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
        """
        try:
            frozen = self.credentials.get_frozen_credentials()
        except Exception as fault:  # what renews credentials may be any program; no letter has left, whatever it raises
            raise NotSigned(type(fault).__name__) from None
        url = self.url + path
        headers = {"Content-Type": "application/json", "Host": urlsplit(url).netloc}
        request = AWSRequest("POST", url, headers=headers, data=body)
        _Signer(frozen, self.region, at_s).add_auth(request)
        del request.headers["Host"]  # as signed, the poster writes it
        return dict(request.headers.items())


class _Signer(SigV4Auth):  # type: ignore[misc] # botocore has no types
    """Signs for a given moment instead of this machine's, by the hook in which botocore's own signers set headers."""

    def __init__(self, credentials: Any, region: str, at_s: float) -> None:
        super().__init__(credentials, _SIGNING_NAME, region)
        self._at = datetime.fromtimestamp(at_s, UTC)

    def _modify_request_before_signing(self, request: AWSRequest) -> None:
        request.context["timestamp"] = self._at.strftime(SIGV4_TIMESTAMP)
        super()._modify_request_before_signing(request)


def open_account(settings: SesSettings, secrets: Mapping[str, str]) -> Account:
    """The account that the settings, and AWS's own chain for the rest, name. ConfigFault says what is missing.

    The chain (environment, ~/.aws, container, machine): https://docs.aws.amazon.com/boto3/latest/guide/credentials.html.
    """
    name = settings.name
    try:
        session = botocore.session.Session(profile=settings.profile)
        if secrets:
            session.set_credentials(secrets["access_key_id"], secrets["secret_access_key"])
        credentials = session.get_credentials()
        region, url = _place(session, settings)
    except botocore.exceptions.ProfileNotFound as fault:
        raise ConfigFault(
            f"sender {name}: AWS's settings here have no profile {fault.kwargs['profile']!r}; choose one of `aws "
            "configure list-profiles`"
        ) from None
    except botocore.exceptions.NoRegionError:
        raise ConfigFault(f"sender {name}: no region; set region to where the account sends from") from None
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as fault:
        raise ConfigFault(
            f"sender {name}: AWS's settings here cannot be used ({type(fault).__name__}); try `aws sts "
            "get-caller-identity`"
        ) from None
    if credentials is None:
        raise ConfigFault(
            f"sender {name}: no AWS credentials here; give this job a role or a profile, or set access_key_id and "
            "secret_access_key"
        )
    if problem := base_url_problem(url):
        raise ConfigFault(f"sender {name}: the endpoint of its region {problem}; set endpoint_url")
    return Account(url.rstrip("/"), region, credentials)


def _place(session: Any, settings: SesSettings) -> tuple[str, str]:
    """The region and the address of its endpoint, as a client of botocore's would have them."""
    client = session.create_client(
        "sesv2",
        region_name=settings.region,
        endpoint_url=settings.endpoint_url,
        config=ClientConfig(retries={"total_max_attempts": 1}),
    )
    try:
        return client.meta.region_name, client.meta.endpoint_url
    finally:
        client.close()
