"""A small HTTP server for probes and scrapes, with the standard library only.

It runs in the metrics process. It accepts GET and HEAD without a body, sends one response for each connection, and
bounds everything that a client controls: the number of connections, the size of a request, and the time.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Final, NamedTuple

from django_pgqueue.ground.log_events import event
from django_pgqueue.worker.runtime.outages import outage_log

logger = logging.getLogger("django_pgqueue.worker")

CONNECTION_LIMIT: Final = 16
"""Connections at a time. A further one takes the place of the oldest one that has not sent its request."""
REQUEST_BYTES: Final = 16 * 1024
TIMEOUT_SECONDS: Final = 5.0
"""How long a client may take to send its request, the server to answer, and the client to read the answer."""
TEXT: Final = "text/plain; charset=utf-8"


class Request(NamedTuple):
    """A request for a page."""

    path: str
    query: str
    accept: str
    """The header `Accept`, or an empty string."""


class Response(NamedTuple):
    """The answer to a request."""

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT


Page = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Serves pages on a socket that is bound already.

    Args:
        pages: For each path, a coroutine function that makes its response.
    """

    def __init__(self, pages: dict[str, Page]) -> None:
        self.pages = pages
        self._unread: dict[asyncio.StreamWriter, None] = {}
        """Connections that have not sent a whole request, the oldest first."""
        self._in_answer: dict[asyncio.StreamWriter, None] = {}
        """The others, the oldest first."""

    async def start(self, listener: socket.socket) -> asyncio.Server:
        """Serve until the returned server is closed."""
        return await asyncio.start_server(self._serve, sock=listener, limit=REQUEST_BYTES)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._unread) + len(self._in_answer) >= CONNECTION_LIMIT:
            self._close_oldest()
        self._unread[writer] = None
        try:
            with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):  # the client's own problem
                await self._answer(writer, await self._read(reader))
        finally:
            self._forget(writer)
            writer.transport.abort()  # `_answer()` has closed the connection if all was sent

    def _close_oldest(self) -> None:
        """Make room. A probe sends its request at once, so silent clients cannot take the room that it needs."""
        oldest = next(iter(self._unread or self._in_answer))
        self._forget(oldest)
        oldest.transport.abort()

    def _forget(self, writer: asyncio.StreamWriter) -> None:
        self._unread.pop(writer, None)
        self._in_answer.pop(writer, None)

    async def _read(self, reader: asyncio.StreamReader) -> bytes:
        """Return the head of the request, or nothing if it is too long."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            try:
                return await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                return b""

    async def _answer(self, writer: asyncio.StreamWriter, head: bytes) -> None:
        if writer in self._unread:
            self._in_answer[writer] = self._unread.pop(writer)
        method, response = await self._respond(head)
        headers = [
            f"HTTP/1.1 {response.status.value} {response.status.phrase}",
            f"Content-Type: {response.content_type}",
            f"Content-Length: {len(response.body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        headers += ["Allow: GET, HEAD"] if response.status is HTTPStatus.METHOD_NOT_ALLOWED else []
        writer.write("\r\n".join([*headers, "", ""]).encode("ascii"))
        writer.write(b"" if method == "HEAD" else response.body)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async def _respond(self, head: bytes) -> tuple[str, Response]:
        """Return the method and the response. An error in a page is logged, and answered without its text."""
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return "", error(HTTPStatus.BAD_REQUEST)
        method, target, _ = words
        if method not in ("GET", "HEAD"):
            return method, error(HTTPStatus.METHOD_NOT_ALLOWED)
        path, _, query = target.partition("?")
        page = self.pages.get(path)
        if page is None:
            return method, error(HTTPStatus.NOT_FOUND, f"The pages are {', '.join(self.pages)}.")
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return method, await page(Request(path, query, _header(lines, "accept")))
        except TimeoutError:
            return method, error(HTTPStatus.SERVICE_UNAVAILABLE, "The page was not ready in time.")
        except Exception:
            if outage_log.may_log():
                logger.exception("the page %s of the metrics port failed", path, extra=event("metrics_failed"))
            return method, error(HTTPStatus.INTERNAL_SERVER_ERROR)


def error(status: HTTPStatus, text: str = "") -> Response:
    """Return a response that says what is wrong."""
    return Response(status, f"{text or status.phrase}\n".encode())


def _header(lines: list[str], name: str) -> str:
    for line in lines[1:]:
        key, _, value = line.partition(":")
        if key.strip().lower() == name:
            return value.strip()
    return ""
