"""Sign webhooks and send them. This module does not use the database."""

import hashlib
import hmac
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final

from django.utils.crypto import constant_time_compare

TIMEOUT_SECONDS: Final = 10
LONGEST_AGE_SECONDS: Final = 300
"""Age of a webhook after which it is refused, so that nobody can send an old one again."""


class Refused(Exception):
    """The receiver answered 4xx, so no retry can succeed."""


class Busy(Exception):
    """The receiver asks to come back later."""

    def __init__(self, after_seconds: float | None) -> None:
        super().__init__("the receiver is busy")
        self.after_seconds = after_seconds


def signature_of(secret: str, key: str, timestamp: str, body: bytes) -> str:
    """Return the signature of a webhook: of its idempotency key, the time at which it is sent, and its body."""
    signed = f"{key}.{timestamp}.".encode() + body
    return "sha256=" + hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()


def is_genuine(headers: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Return whether a webhook has a valid signature and is recent."""
    timestamp = headers.get("Webhook-Timestamp", "")
    expected = signature_of(secret, headers.get("Idempotency-Key", ""), timestamp, body)
    if not constant_time_compare(expected, headers.get("Webhook-Signature", "")):  # accepts any text
        return False
    return timestamp.isdecimal() and abs(time.time() - int(timestamp)) <= LONGEST_AGE_SECONDS


def send(url: str, body: bytes, *, secret: str, key: str) -> None:
    """Send a webhook. Raise `Refused`, `Busy`, or another `OSError` for errors that a retry can fix."""
    timestamp = str(int(time.time()))
    headers = {
        "Content-Type": "application/json",
        "Idempotency-Key": key,
        "Webhook-Timestamp": timestamp,
        "Webhook-Signature": signature_of(secret, key, timestamp, body),
    }
    request = urllib.request.Request(url, data=body, headers=headers)  # noqa: S310 -- operators enter the URLs
    try:
        urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS).close()  # noqa: S310 -- as above
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (408, 429):
            after = error.headers.get("Retry-After", "")
            raise Busy(min(float(after), 3600.0) if after.isdecimal() else None) from error
        if error.code < 500:
            raise Refused(f"the receiver answered {error.code}") from error
        raise
