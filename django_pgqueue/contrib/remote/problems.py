"""The errors that the HTTP interface answers with, as JSON problems (RFC 9457).

Every module of the interface raises a `Problem`; `endpoint` makes the response. No problem contains a secret, an
argument of a job or the text of a database error.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from django.http import JsonResponse


class Problem(Exception):
    """A request that cannot be served.

    Args:
        status: The HTTP status.
        code: A short word for programs.
        detail: What is wrong, and what to do, for people.
        headers: Further headers of the response.
    """

    def __init__(self, status: HTTPStatus, code: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})

    def as_json(self) -> dict[str, Any]:
        """Return the members of the JSON problem."""
        return {"status": int(self.status), "title": self.status.phrase, "code": self.code, "detail": self.detail}

    def response(self) -> JsonResponse:
        """Return the HTTP response."""
        return JsonResponse(
            self.as_json(), status=self.status, headers=self.headers, content_type="application/problem+json"
        )


def invalid(detail: str) -> Problem:
    """Return the problem of a request that does not have the described form."""
    return Problem(HTTPStatus.BAD_REQUEST, "invalid", detail)


def forbidden(detail: str) -> Problem:
    """Return the problem of a request for something that the token does not allow."""
    return Problem(HTTPStatus.FORBIDDEN, "forbidden", detail)


def unauthorized() -> Problem:
    """Return the problem of a missing or invalid token. It does not say why a token is invalid."""
    detail = 'pass a valid token in the header "Authorization: Bearer TOKEN"'
    return Problem(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, {"WWW-Authenticate": "Bearer"})


def too_many(detail: str, wait_seconds: int) -> Problem:
    """Return the problem of a machine that asks too much, and should ask again after some time."""
    headers = {"Retry-After": str(wait_seconds)}
    return Problem(HTTPStatus.TOO_MANY_REQUESTS, "too_many", f"{detail}: wait {wait_seconds} s", headers)


def unavailable(detail: str = "the database does not answer: try again later") -> Problem:
    """Return the problem of an outage."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, "unavailable", detail, {"Retry-After": "5"})
