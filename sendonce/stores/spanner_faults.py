"""What a call of Google's Spanner client that failed means for who called the store."""

from typing import Final

from google.api_core import exceptions
from google.auth.exceptions import GoogleAuthError, TransportError

from schemas.tables import TABLES
from sendonce.stores.base import AlreadyExists, StoreError, StoreRefused, StoreUnavailable

# What the client raises on purpose.
FAULTS: Final = (exceptions.GoogleAPICallError, exceptions.RetryError, GoogleAuthError)

_UNREACHED: Final = (
    exceptions.ServiceUnavailable,
    exceptions.DeadlineExceeded,
    exceptions.InternalServerError,
    exceptions.Cancelled,
    exceptions.Aborted,
    exceptions.Unknown,
    exceptions.TooManyRequests,
    exceptions.RetryError,
    TransportError,
)


def in_our_words(url: str, fault: Exception, *, committing: bool = False) -> StoreError:
    """committing: whether a commit was under way. The client's own text may hold values, so none of it is repeated."""
    name = type(fault).__name__
    if isinstance(fault, exceptions.AlreadyExists):
        # The client's text holds the key, which may be personal; the table's name is not.
        named = next((table.name for table in TABLES.values() if f" {table.name}" in str(fault)), "a table")
        return AlreadyExists(f"store {url}: {named} has a row with this key already")
    if isinstance(fault, _UNREACHED):
        # An abort is Spanner's word that nothing was applied.
        maybe = committing and not isinstance(fault, exceptions.Aborted)
        return StoreUnavailable(f"store {url} could not be reached, or was too busy ({name})", maybe_applied=maybe)
    if isinstance(fault, exceptions.NotFound):
        return StoreRefused(f"there is no store at {url}, or its tables are missing; run `sendonce init`")
    if isinstance(fault, exceptions.PermissionDenied):
        return StoreRefused(
            f"store {url}: this account may not use it ({name}); give it the role roles/spanner.databaseUser"
        )
    if isinstance(fault, (exceptions.Unauthenticated, GoogleAuthError)):
        return StoreRefused(
            f"store {url}: Google does not take this account's credentials ({name}); run "
            "`gcloud auth application-default login`, or mend the service account's key"
        )
    return StoreRefused(f"store {url} refused a call ({name}); look at its log, or report it")
