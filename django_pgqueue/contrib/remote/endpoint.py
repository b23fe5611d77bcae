"""Make a view of a function that answers a JSON request: check the token, the rate and the size before the body.

The checks come in this order: method, rate of a known token, token, type, size, JSON. So a request without a valid
token is never parsed, and a token that makes too many requests costs no query. Errors are answered as `problems`.

The views are coroutines. Under ASGI, Django starts a thread for each request, calls the receivers of `request_started`
there, and keeps the thread until the request ends. `end_request_thread()` ends that thread before a claim waits.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable, Coroutine
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import psycopg
from asgiref.sync import SyncToAsync, sync_to_async
from django.core.exceptions import RequestDataTooBig
from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.request import RawPostDataException, UnreadablePostError
from django.views.decorators.csrf import csrf_exempt

from django_pgqueue.db.errors import message_without_detail
from django_pgqueue.log_events import event

from .engine import Engine, engine_of
from .fields import parsed
from .problems import Problem, invalid, unauthorized, unavailable
from .tokens import MAX_TOKEN_CHARACTERS, PREFIX, Caller, caller_of, digest_of, rates, token_alias

logger = logging.getLogger("django_pgqueue.remote")

MAX_BODY_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a request. A batch of results may have to be divided."""


class Answer(NamedTuple):
    """The JSON document that a handler returns, and the status."""

    document: dict[str, Any]
    status: HTTPStatus = HTTPStatus.OK


class Call(NamedTuple):
    """A request that has passed all checks."""

    caller: Caller
    engine: Engine
    body: Any
    """The JSON value of the request."""

    @property
    def alias(self) -> str:
        """The database of the jobs."""
        return self.engine.alias


Handler = Callable[[Call], Awaitable[Answer]]
View = Callable[..., Coroutine[Any, Any, HttpResponse]]


def endpoint(handler: Handler, *, waits: bool = False) -> View:
    """Return the view of a handler. It takes POST requests with a JSON body. `waits`: the handler may wait for long."""

    @functools.wraps(handler)
    async def view(request: HttpRequest, database: str | None = None) -> HttpResponse:
        try:
            if waits:
                await end_request_thread()
            answer = await handler(await _checked(request, engine_of(token_alias(database))))
        except Problem as problem:
            return problem.response()
        except (psycopg.OperationalError, psycopg.InterfaceError, OSError) as error:
            logger.warning(
                "a request of a remote worker failed: %s",
                message_without_detail(error),
                extra=event("remote_request_failed"),
            )
            return unavailable().response()
        return JsonResponse(answer.document, status=answer.status, headers={"Cache-Control": "no-store"})

    return csrf_exempt(transaction.non_atomic_requests(view))


async def _checked(request: HttpRequest, engine: Engine) -> Call:
    if request.method != "POST":
        detail = "this address takes POST requests only"
        raise Problem(HTTPStatus.METHOD_NOT_ALLOWED, "method", detail, {"Allow": "POST"})
    digest = _digest(request)
    rates.check(digest)
    caller = await engine.run(caller_of, digest)
    return Call(caller, engine, parsed(_body(request)))


def _digest(request: HttpRequest) -> bytes:
    scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not secret.startswith(PREFIX) or len(secret) > MAX_TOKEN_CHARACTERS:
        raise unauthorized()
    return digest_of(secret)


def _body(request: HttpRequest) -> bytes:
    """Return the body of a request. Raise `Problem` if it is too large, without reading more than the limit."""
    if request.content_type != "application/json":
        detail = 'the request needs the header "Content-Type: application/json"'
        raise Problem(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "type", detail)
    too_large = Problem(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "too_large", f"the body has more than {MAX_BODY_BYTES:,} bytes"
    )
    given = request.headers.get("Content-Length", "0")
    if given.isdigit() and int(given[:20]) > MAX_BODY_BYTES:
        raise too_large
    try:
        body: bytes = request.read(MAX_BODY_BYTES + 1)
    except RequestDataTooBig:
        raise too_large from None
    except (UnreadablePostError, RawPostDataException, OSError):
        raise invalid("the body could not be read") from None
    if len(body) > MAX_BODY_BYTES:
        raise too_large
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
