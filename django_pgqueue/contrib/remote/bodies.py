"""Limit the body of a request before it is parsed, by its size and by how many values it has.

`endpoint` and `asgi` call these functions. The server parses a body on its event loop, and meanwhile it answers no
other request. 4 MiB of empty lists stopped it for 14 s, because Python makes an object of each of them.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any, Final, NoReturn

from django.http import HttpRequest

from django_pgqueue.settings.conf import get_settings

from .problems import Problem, invalid

OVERHEAD_BYTES: Final = 64 * 1024
"""Room for the handles of 100 executions, and for the other members."""
LONGEST_ESCAPE: Final = 3
"""How many bytes a JSON text can have for one byte of the same text in UTF-8."""
OVERHEAD_VALUES: Final = 10_000


def max_body_bytes() -> int:
    """Return the size of the largest body: one largest result, or one longest traceback, and the rest."""
    settings = get_settings()
    return OVERHEAD_BYTES + LONGEST_ESCAPE * max(settings.MAX_RESULT_BYTES, settings.MAX_TRACEBACK_BYTES)


def max_body_values() -> int:
    """Return how many commas and opening brackets a body may have: those of one largest result, and the rest."""
    return OVERHEAD_VALUES + get_settings().MAX_RESULT_BYTES


def check_headers(request: HttpRequest) -> None:
    """Raise `Problem` if a request has the wrong type, or says that it is too large."""
    if request.content_type != "application/json":
        detail = 'the request needs the header "Content-Type: application/json"'
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "type", detail)
    given = request.headers.get("Content-Length", "0")
    if given.isdigit() and int(given[:20]) > max_body_bytes():
        raise too_large()


def too_large() -> Problem:
    """Return the problem of a body with too many bytes."""
    detail = f"the body has more than {max_body_bytes():,} bytes: send fewer executions in one request"
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", detail)


def parsed(body: bytes) -> Any:
    """Return the JSON value of a request's body. Raise `Problem` if it has too many values."""
    if sum(map(body.count, (b",", b"[", b"{"))) > max_body_values():
        detail = f"the body has more than {max_body_values():,} values: send fewer executions in one request"
        raise Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", detail)
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise invalid(f"the body is not valid JSON: {reason}"[:300]) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
