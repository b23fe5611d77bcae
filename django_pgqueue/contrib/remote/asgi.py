"""Check the requests of remote workers before their bodies are read: a wrapper of an ASGI application.

A project's ASGI module calls `check_first()`. Under ASGI, Django reads and stores the whole body of each request before
it calls a view. The wrapper protects the server's memory and disk: without a valid token, no byte of a
body is read, and with one no more than `bodies.max_body_bytes()`.
"""

from __future__ import annotations

import io
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from django.core.handlers.asgi import ASGIRequest
from django.http import HttpResponse
from django.urls import Resolver404, resolve

from .bodies import check_headers, max_body_bytes, too_large
from .endpoint import CALLER, admitted, answered, is_endpoint
from .machine_tokens import token_alias
from .urls import urlpatterns

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

PATH_ENDS: Final = tuple(f"/{pattern.pattern}" for pattern in urlpatterns)
"""How the paths of the interface end. Other paths are not resolved here."""


def check_first(application: Application) -> Application:
    """Return the application, with the requests of remote workers checked before it reads their bodies.

    The views check the same again where this wrapper is missing, for example under WSGI.

    Args:
        application: The ASGI application of the project.

    Example::

        from django.core.asgi import get_asgi_application
        from django_pgqueue.contrib.remote.asgi import check_first

        application = check_first(get_asgi_application())
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        found = _request_of(scope)
        if found is None:
            await application(scope, receive, send)
            return
        request, database = found

        async def admitted_body() -> bytes:
            scope[CALLER] = (token_alias(database), await admitted(request, database))
            check_headers(request)
            return await _read(receive)

        body = await answered(admitted_body)
        if isinstance(body, bytes):
            await application(scope, _replaying(body, receive), send)
        else:
            await _send_response(send, body)

    return checked


def _request_of(scope: Scope) -> tuple[ASGIRequest, str | None] | None:
    """Return a request to an endpoint without its body, and the database that its URL names. None: another request."""
    if scope["type"] != "http" or not scope["path"].endswith(PATH_ENDS):
        return None
    try:
        request = ASGIRequest(scope, io.BytesIO())
        match = resolve(request.path_info)
    except (UnicodeDecodeError, Resolver404):  # Django answers it
        return None
    return (request, match.kwargs.get("database")) if is_endpoint(match.func) else None


async def _read(receive: Receive) -> bytes:
    """Return the body of a request. Raise `Problem` if it is too large, or `OSError` if the client has gone."""
    body, has_more = bytearray(), True
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionAbortedError("the client has closed the connection")
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
        if len(body) > max_body_bytes():
            raise too_large()
    return bytes(body)


def _replaying(body: bytes, receive: Receive) -> Receive:
    """Return a function that first returns the body that was read, and then what the server receives."""
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def replay() -> MutableMapping[str, Any]:
        message = next(messages, None)
        return await receive() if message is None else message

    return replay


async def _send_response(send: Send, response: HttpResponse) -> None:
    headers = [(name.lower().encode("latin1"), value.encode("latin1")) for name, value in response.items()]
    await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
    await send({"type": "http.response.body", "body": response.getvalue()})
