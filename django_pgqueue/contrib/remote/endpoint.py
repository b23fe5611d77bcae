"""Make a view of a function that answers a JSON request: check the rate, the token and the size before the body.

`views` makes its views with `endpoint()`. The checks come in this order: method, rate of a known token, token, type,
size, JSON. So a request without a valid token is never parsed, and a token that makes too many requests costs no query.
Errors are answered as `problems`. Under ASGI, `asgi` makes the first checks earlier, before Django reads the body.

The views are coroutines. Under ASGI, Django starts a thread for each request, calls the receivers of `request_started`
there, and keeps the thread until the request ends. `end_request_thread()` ends that thread before a claim waits.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from asgiref.sync import SyncToAsync, sync_to_async
from django.core.exceptions import RequestDataTooBig
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.request import RawPostDataException, UnreadablePostError
from django.views.decorators.csrf import csrf_exempt

from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.ground.log_events import event

from .bodies import check_headers, max_body_bytes, parsed, too_large
from .engine import Engine, engine_of
from .machine_tokens import MAX_TOKEN_CHARACTERS, PREFIX, Caller, caller_of, digest_of, rates, token_alias
from .problems import Problem, invalid, unauthorized, unavailable

logger = logging.getLogger("django_pgqueue.remote")

CALLER: Final = "django_pgqueue.remote.caller"
"""Where the scope of an ASGI request has its caller and the database of the token, if `asgi` has checked it."""


class Answer(NamedTuple):
    """The JSON document that a handler returns, and the status."""

    document: dict[str, Any]
    status: HTTPStatus = HTTPStatus.OK


class RemoteCall(NamedTuple):
    """A request that has passed all checks."""

    caller: Caller
    engine: Engine
    body: Any
    """The JSON value of the request."""

    @property
    def alias(self) -> str:
        """The database of the jobs."""
        return self.engine.alias


Handler = Callable[[RemoteCall], Awaitable[Answer]]
View = Callable[..., Coroutine[Any, Any, HttpResponse]]
R = TypeVar("R")
_views: Final = set[View]()


def endpoint(handler: Handler, *, waits: bool = False) -> View:
    """Return the view of a handler. It takes POST requests with a JSON body. `waits`: the handler may wait for long."""

    @functools.wraps(handler)
    async def view(request: HttpRequest, database: str | None = None) -> HttpResponse:
        async def answer() -> HttpResponse:
            if waits:
                await end_request_thread()
            alias = token_alias(database)
            known_alias, known = getattr(request, "scope", {}).get(CALLER, (None, None))
            caller = known if known is not None and known_alias == alias else await admitted(request, database)
            call = RemoteCall(caller, engine_of(alias), parsed(_body(request)))
            document, status = await handler(call)
            return JsonResponse(document, status=status, headers={"Cache-Control": "no-store"})

        return await answered(answer)

    exempt: View = csrf_exempt(transaction.non_atomic_requests(view))
    _views.add(exempt)
    return exempt


def is_endpoint(view: Callable[..., Any]) -> bool:
    """Return whether a function is the view of an endpoint."""
    return view in _views


async def answered(answer: Callable[[], Awaitable[R]]) -> R | HttpResponse:
    """Return what a function returns, or the response to its error."""
    try:
        return await answer()
    except Problem as problem:
        return problem.response()
    except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
        logger.warning(
            "a request of a remote worker failed: %s",
            message_without_detail(error),
            extra=event("remote_request_failed"),
        )
        return unavailable().response()


async def admitted(request: HttpRequest, database: str | None) -> Caller:
    """Return who makes a request. Raise `Problem` if it has another method than POST, or no valid token."""
    if request.method != "POST":
        detail = "this address takes POST requests only"
        raise Problem(HTTPStatus.METHOD_NOT_ALLOWED, "method", detail, {"Allow": "POST"})
    digest = _digest(request)
    rates.check(digest)
    return await engine_of(token_alias(database)).run(caller_of, digest)


def _digest(request: HttpRequest) -> bytes:
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret.startswith(PREFIX) or len(secret) > MAX_TOKEN_CHARACTERS:
        raise unauthorized()
    return digest_of(secret)


def _body(request: HttpRequest) -> bytes:
    """Return the body of a request. Raise `Problem` if it is too large, without reading more than the limit."""
    check_headers(request)
    try:
        body: bytes = request.read(max_body_bytes() + 1)
    except RequestDataTooBig:
        raise too_large() from None
    except (UnreadablePostError, RawPostDataException, OSError):
        raise invalid("the body could not be read") from None
    if len(body) > max_body_bytes():
        raise too_large()
    return body


async def end_request_thread() -> None:
    """End the thread that Django has made for the signal receivers of this request, if there is one.

    Django makes another one when the request ends. Without this, 500 machines that wait would be 500 threads. The names
    are asgiref's; if they change, the threads stay, and nothing else happens.
    """
    context = getattr(SyncToAsync, "thread_sensitive_context", None)
    executors = getattr(SyncToAsync, "context_to_thread_executor", None)
    here = None if context is None else context.get(None)
    if here is None or executors is None or here not in executors:
        return
    await sync_to_async(connections.close_all)()
    executor = executors.pop(here, None)
    if executor is not None:
        executor.shutdown(wait=False)
