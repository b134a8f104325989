"""What is wrong with a server's certificate, as a reason for machines."""

import ssl
from typing import Final

# X509_V_ERR_… of OpenSSL's x509_vfy.h: not yet or no longer valid; another host, address.
_CERTIFICATE: Final = {9: "tls_expired", 10: "tls_expired", 62: "tls_host", 64: "tls_host"}


def of_certificate(fault: BaseException) -> str:
    """`tls_expired`, `tls_host` or `tls_untrusted`; empty if it was not the certificate."""
    if not isinstance(fault, ssl.SSLCertVerificationError):
        return ""
    return _CERTIFICATE.get(fault.verify_code, "tls_untrusted")
