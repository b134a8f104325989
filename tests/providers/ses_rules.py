"""What SES says no to, by its pages and by the model of its API that botocore ships; signatures by AWS's own page."""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import botocore.session
from botocore.validate import ParamValidator

from tests.providers.http import Received

OPERATIONS = {"/v2/email/outbound-bulk-emails": "SendBulkEmail", "/v2/email/outbound-emails": "SendEmail"}
SKEW_S = 300
_TAG = re.compile(r"[A-Za-z0-9_-]{1,256}")
_HEADER_NAME, _HEADER_VALUE = re.compile(r"[!-9;-~]{1,126}"), re.compile(r"[ -~]{1,995}")
_ADDRESS = re.compile(r"[!-~]+@[A-Za-z0-9.-]+\.[A-Za-z0-9-]+")


@lru_cache
def _model() -> Any:
    return botocore.session.Session().get_service_model("sesv2")


def problem_of(operation: str, body: Any, size: int) -> str:
    """Why SES takes nothing of a call; empty when it takes it."""
    if not isinstance(body, dict):
        return "Unexpected token"
    report = ParamValidator().validate(body, _model().operation_model(operation).input_shape)
    if report.has_errors():
        return str(report.generate_report())
    if operation == "SendBulkEmail":
        entries = body["BulkEmailEntries"]
        if size > 1_000_000:
            return "Request is larger than 1 MB"
        if not 1 <= len(entries) <= 50:
            return "The number of destinations must be between 1 and 50"
        pairs = [pair for entry in entries for pair in (entry["ReplacementTags"], entry["ReplacementHeaders"])]
        data = [entry["ReplacementEmailContent"]["ReplacementTemplate"]["ReplacementTemplateData"] for entry in entries]
        if any(len(text) > 262_144 or not isinstance(json.loads(text), dict) for text in data):
            return "Invalid replacement template data"
    else:
        pairs = [body["EmailTags"], body["Content"]["Simple"]["Headers"]]
        subject = body["Content"]["Simple"]["Subject"]["Data"]
        if re.search(r"[\r\n]", subject):
            return "Header value contains control characters"
    if not body["FromEmailAddress"].isascii():
        return "Local address contains control or whitespace"
    return next(filter(None, map(_of_pairs, pairs[0::2], pairs[1::2])), "")


def _of_pairs(tags: list[dict[str, str]], headers: list[dict[str, str]]) -> str:
    if not all(_TAG.fullmatch(tag["Name"]) and _TAG.fullmatch(tag["Value"]) for tag in tags):
        return "Invalid tag"
    if len(headers) > 15 or not all(
        _HEADER_NAME.fullmatch(header["Name"])
        and _HEADER_VALUE.fullmatch(header["Value"])
        and len(header["Name"] + header["Value"]) <= 996
        for header in headers
    ):
        return "Invalid header"
    return ""


def is_an_address(text: str) -> bool:
    return bool(_ADDRESS.fullmatch(text))


# -- signatures -----------------------------------------------------------------------------------------------------


def signature_problem(received: Received, keys: Mapping[str, str], region: str, now_s: float) -> tuple[str, str]:
    """(code, message) of a signature that AWS refuses; empty texts for a good one.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html, worked out by hand: the
    library that signs shall not be its own judge.
    """
    told = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/ses/aws4_request, SignedHeaders=([a-z0-9;-]+), "
        r"Signature=([0-9a-f]{64})",
        received.headers.get("authorization", ""),
    )
    if told is None:
        return "MissingAuthenticationTokenException", "Missing Authentication Token"
    key_id, date, in_region, names, signature = told.groups()
    if key_id not in keys:
        return "UnrecognizedClientException", "The security token included in the request is invalid."
    at = received.headers.get("x-amz-date", "")
    off_s = datetime.strptime(at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp() - now_s
    if abs(off_s) > SKEW_S:
        word = "not yet current" if off_s > 0 else "expired"
        return "InvalidSignatureException", f"Signature {word}: {at} is not within 5 min. of now"
    if not {"host", "x-amz-date"} <= set(names.split(";")) or in_region != region:
        return "InvalidSignatureException", "Credential should be scoped to a valid region."
    signed = "".join(f"{name}:{' '.join(received.headers[name].split())}\n" for name in names.split(";"))
    canonical = "\n".join(
        [received.method, received.target, "", signed, names, hashlib.sha256(received.body).hexdigest()]
    )
    scope = f"{date}/{in_region}/ses/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", at, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"AWS4{keys[key_id]}".encode()
    for step in (date, in_region, "ses", "aws4_request"):
        key = hmac.digest(key, step.encode(), "sha256")
    if not hmac.compare_digest(hmac.digest(key, text.encode(), "sha256").hex(), signature):
        return (
            "InvalidSignatureException",
            "The request signature we calculated does not match the signature you provided. Check your AWS Secret "
            f"Access Key and signing method.\n\nThe Canonical String for this request should have been\n'{canonical}'",
        )
    return "", ""
