"""A client of the HTTP interface, on the standard library alone.

`remote_worker` uses it, and so can a program of your own. Each request opens a connection of its own and follows no
redirect, so the token is sent to the given host only. It is never sent without encryption, except to this machine.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlsplit

Execution = dict[str, Any]
"""A claimed job, as the server describes it."""

MAX_ANSWER_BYTES: Final = 64 * 1024 * 1024
MAX_BODY_BYTES: Final = 64 * 1024
"""How large requests are until the server has said how large they may be."""
ENVELOPE_BYTES: Final = 5000
"""Room in a request for what is not an item, such as the handle of the worker."""
TOO_LARGE: Final = 413
WAIT_MARGIN_SECONDS: Final = 15.0
"""How long the answer to a claim may take beyond the time that the server waits."""
TEMPORARY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed later."""


class RemoteError(Exception):
    """The server has refused a request, or did not answer.

    Args:
        detail: What is wrong.
        status: The HTTP status. 0: there was no answer.
        retry_after_seconds: How long to wait before the next request, if the server says it.
    """

    def __init__(self, detail: str, status: int = 0, retry_after_seconds: float | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.retry_after_seconds = retry_after_seconds

    @property
    def is_temporary(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status == 0 or self.status in TEMPORARY


class RemoteClient:
    """Sends requests to one server with one token. Safe for several threads.

    Args:
        url: Where the project has included the URLs, such as "https://example.com/remote/".
        token: What `manage.py pgqueue remote-token create` has printed.
        timeout_seconds: How long to wait for an answer.
        context: TLS settings, for example with a certificate authority of your own.

    Raises:
        ValueError: The URL is not valid, or not encrypted and of another machine.

    Example::

        client = RemoteClient("https://example.com/remote/", token)
        worker = client.register("vm-7")["worker"]
        for execution in client.claim(worker, limit=10, wait_seconds=20):
            client.complete([{"execution": execution["execution"], "result": work(*execution["args"])}])
    """

    def __init__(
        self, url: str, token: str, *, timeout_seconds: float = 10.0, context: ssl.SSLContext | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the URL of a server: pass one such as https://example.com/remote/")
        if parts.scheme == "http" and not _is_this_machine(parts.hostname):
            raise ValueError(f"{url!r} would send the token without encryption: use https")
        self._host = parts.hostname
        self._port = parts.port
        self._path = f"{parts.path.rstrip('/')}/v1/"
        self._is_encrypted = parts.scheme == "https"
        self._context = context
        self._token = token
        self._timeout_seconds = timeout_seconds
        self._max_body_bytes = MAX_BODY_BYTES
        self._lock = threading.Lock()
        self._claiming: http.client.HTTPConnection | None = None
        self._is_aborted = False

    # ---------------------------------------------------------------- the operations

    def register(
        self, name: str, *, pid: int = 0, concurrency: int = 1, queue_names: Sequence[str] = ()
    ) -> dict[str, Any]:
        """Register a worker. Return its handle as `worker`, with the times of the server's leases."""
        body = {"name": name, "pid": pid, "concurrency": concurrency, "queues": list(queue_names)}
        answer: dict[str, Any] = self._post("workers", body)
        self._max_body_bytes = int(answer.get("max_body_bytes", MAX_BODY_BYTES))
        return answer

    def stop(self, worker: str) -> None:
        """Record that a worker has stopped. The executions that it has left open are released."""
        self._post("workers/stop", {"worker": worker})

    def claim(
        self,
        worker: str,
        *,
        limit: int = 1,
        wait_seconds: float = 0.0,
        lease_seconds: float | None = None,
        queue_names: Sequence[str] = (),
        task_names: Sequence[str] = (),
    ) -> list[Execution]:
        """Claim up to `limit` jobs. If no job is due, the server waits up to `wait_seconds` (at most 25) for one.

        With `lease_seconds`, their leases and each extension last so long, from the server's `lease_seconds` to its
        `max_lease_seconds`. If this machine is lost, another worker gets the jobs only after that.
        """
        body: dict[str, Any] = {
            "worker": worker,
            "limit": limit,
            "wait_seconds": wait_seconds,
            "queues": list(queue_names),
            "tasks": list(task_names),
        }
        if lease_seconds is not None:
            body["lease_seconds"] = lease_seconds
        executions: list[Execution] = self._post("claim", body, wait_seconds)["executions"]
        return executions

    def extend(self, worker: str, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Extend the leases of executions. Without any, say that the worker lives."""
        if not items:
            self._post("extend", {"worker": worker})
        return self._on_executions("extend", items, {"worker": worker})

    def complete(self, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write that executions have succeeded. Each item has `execution`, and `result` if there is one."""
        return self._on_executions("complete", items, is_each_final=True)

    def fail(self, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Write that executions have failed."""
        return self._on_executions("fail", items, is_each_final=True)

    def release(self, items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Release executions without counting the attempt."""
        return self._on_executions("release", items)

    def abort_claim(self) -> None:
        """End the claim that waits in another thread, and let every further claim fail.

        If the server has just claimed jobs for it, `stop()` releases them.
        """
        with self._lock:
            self._is_aborted = True
            if self._claiming is not None and self._claiming.sock is not None:
                with suppress(OSError):
                    self._claiming.sock.shutdown(socket.SHUT_RDWR)

    # ---------------------------------------------------------------- HTTP

    def _on_executions(
        self,
        path: str,
        items: Sequence[dict[str, Any]],
        more: Mapping[str, Any] = MappingProxyType({}),
        *,
        is_each_final: bool = False,
    ) -> list[dict[str, Any]]:
        """Return the results of an operation on executions, also if all of them have failed.

        The items are sent in as many requests as their sizes need. The result of an item that is too large alone is
        `too_large`. With `is_each_final`, an error after the first request ends the list with the last known result,
        so that no result is asked for twice.
        """
        results: list[dict[str, Any]] = []
        for batch in _batches(items, self._max_body_bytes):
            try:
                results += self._results(path, batch, more)
            except RemoteError:
                if not (results and is_each_final):
                    raise
                break
        return results

    def _results(self, path: str, items: Sequence[dict[str, Any]], more: Mapping[str, Any]) -> list[dict[str, Any]]:
        try:
            answer = self._post(path, {**more, "executions": items})
        except RemoteError as error:
            if error.status != TOO_LARGE:
                raise
            if len(items) == 1:
                return [{"execution": items[0]["execution"], "status": TOO_LARGE, "result": "too_large"}]
            half = len(items) // 2
            return self._results(path, items[:half], more) + self._results(path, items[half:], more)
        results: list[dict[str, Any]] = answer["executions"]
        return results

    def _post(self, path: str, body: Mapping[str, Any], wait_seconds: float | None = None) -> Any:
        """Send a request and return the JSON of its answer. `wait_seconds` is for claims."""
        seconds = self._timeout_seconds if wait_seconds is None else wait_seconds + WAIT_MARGIN_SECONDS
        connection = self._connection(seconds)
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        try:
            if wait_seconds is not None:
                self._begin_claim(connection)
            connection.request("POST", self._path + path, _encoded(body), headers)
            response = connection.getresponse()
            text = response.read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            raise RemoteError(f"no answer from {self._host}: {type(error).__name__}: {error}") from error
        finally:
            connection.close()
            if wait_seconds is not None:
                with self._lock:
                    self._claiming = None
        return self._answer(response, text, has_items="executions" in body)

    def _begin_claim(self, connection: http.client.HTTPConnection) -> None:
        connection.connect()
        with self._lock:
            if self._is_aborted:
                raise ConnectionAbortedError("the worker stops")
            self._claiming = connection

    def _connection(self, timeout_seconds: float) -> http.client.HTTPConnection:
        if self._is_encrypted:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout_seconds, context=self._context or ssl.create_default_context()
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout_seconds)

    def _answer(self, response: http.client.HTTPResponse, text: bytes, *, has_items: bool) -> Any:
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            answer = None
        is_object = isinstance(answer, dict)
        # If all executions of a request have failed alike, the answer has their status, and a result for each.
        has_results = has_items and is_object and isinstance(answer.get("executions"), list)
        if has_results or (is_object and response.status in (200, 201, 207)):
            return answer
        detail = answer.get("detail", "") if is_object else ""
        after = response.headers.get("Retry-After", "")
        raise RemoteError(
            f"{self._host} answered {response.status} {response.reason}{f': {detail}' if detail else ''}",
            response.status,
            float(after) if after.isdigit() else None,
        )


def _encoded(body: Any) -> bytes:
    """Return JSON in UTF-8. Escapes would make it up to six times as long, and a result too large for a request."""
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # half of a character, which the server refuses by the name of its field
        return json.dumps(body).encode()


def _batches(items: Sequence[dict[str, Any]], most_bytes: int) -> Iterator[list[dict[str, Any]]]:
    """Yield items in batches whose JSON has at most this size, if no single item is larger."""
    batch: list[dict[str, Any]] = []
    left = most_bytes - ENVELOPE_BYTES
    for item in items:
        size = len(_encoded(item)) + 2
        if batch and size > left:
            yield batch
            batch, left = [], most_bytes - ENVELOPE_BYTES
        batch.append(item)
        left -= size
    if batch:
        yield batch


def _is_this_machine(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
