"""A TCP proxy in front of a PostgreSQL socket. It can lose a single reply, or all data in both directions."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

Predicate = Callable[[str, bytes], bool]


class Proxy:
    """Passes bytes between clients and a server, unless a test makes it lose them."""

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.black_hole = threading.Event()
        """While it is set, the proxy passes no data in either direction and closes no connection."""
        self.swallow: Predicate | None = None
        """Takes (application name, reply). When it returns True, the proxy once loses the reply and its connection."""
        self.swallowed = 0
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Close the listening socket and all connections."""
        self._closed.set()
        self.listener.close()

    def settings(self, database: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a database, changed so that connections go through this proxy."""
        return database | {"HOST": "127.0.0.1", "PORT": str(self.port)}

    def _accept(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):
                client, _ = self.listener.accept()
                threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        name = ""
        with client, server, contextlib.suppress(OSError):
            server.connect(self.socket_path)
            while not self._closed.is_set():
                ready, _, _ = select.select([client, server], [], [], 0.05)
                if self.black_hole.is_set():
                    self._closed.wait(0.05)
                    continue
                for end in ready:
                    data = end.recv(65536)
                    if not data:
                        return
                    if end is client:
                        name = name or application_name(data)
                        server.sendall(data)
                    elif self._is_lost(name, data):
                        return
                    else:
                        client.sendall(data)

    def _is_lost(self, name: str, data: bytes) -> bool:
        if self.swallow is None or not self.swallow(name, data):
            return False
        self.swallow = None
        self.swallowed += 1
        return True


def application_name(data: bytes) -> str:
    """Return the application name in a start-up packet."""
    _, found, rest = data.partition(b"application_name\0")
    return rest.partition(b"\0")[0].decode() if found else ""
