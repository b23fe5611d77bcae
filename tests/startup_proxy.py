"""A proxy that treats start-up packets as poolers do: it refuses or ignores `options`, or refuses everything."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable

SSL_REQUEST = 80877103
GSSENC_REQUEST = 80877104
CANCEL_REQUEST = 80877102
Startup = dict[str, str]
Answer = tuple[str, str] | bytes | None
"""What a client with this start-up packet gets: an error with its SQLSTATE and message, these bytes, or the server."""


def error_response(sqlstate: str, message: str) -> bytes:
    fields = b"".join(
        kind + text.encode() + b"\0"
        for kind, text in ((b"S", "FATAL"), (b"V", "FATAL"), (b"C", sqlstate), (b"M", message))
    )
    return b"E" + struct.pack("!I", len(fields) + 5) + fields + b"\0"


class StartupProxy:
    """Passes connections on to a PostgreSQL socket, unless `answer` refuses their start-up packet."""

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path
        self.answer: Callable[[Startup], Answer] = lambda startup: None
        self.rewrite: Callable[[Startup], Startup] = lambda startup: startup
        """Changes the packet that the server gets."""
        self.startups: list[Startup] = []
        """The packets that clients have sent."""
        self.is_down = False
        """While it is true, connections end without an answer, as at a pooler that restarts."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self._closed = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Close the listening socket and all connections."""
        self._closed.set()
        self.listener.close()

    def with_options(self) -> list[bool]:
        """Return for each start-up packet whether it had options."""
        return ["options" in startup for startup in self.startups]

    def _accept(self) -> None:
        while not self._closed.is_set():
            with contextlib.suppress(OSError):
                client, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = socket.socket(socket.AF_UNIX)
        with client, server, contextlib.suppress(OSError):
            packet = read_packet(client)
            while packet[:4] in (struct.pack("!I", SSL_REQUEST), struct.pack("!I", GSSENC_REQUEST)):
                client.sendall(b"N")
                packet = read_packet(client)
            if self.is_down:
                return
            if packet[:4] != struct.pack("!I", CANCEL_REQUEST):
                startup = parse(packet)
                self.startups.append(startup)
                answer = self.answer(startup)
                if answer is not None:
                    client.sendall(answer if isinstance(answer, bytes) else error_response(*answer))
                    return
                packet = packet[:4] + unparse(self.rewrite(startup))
            server.connect(self.socket_path)
            server.sendall(struct.pack("!I", len(packet) + 4) + packet)
            self._pass(client, server)

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        while not self._closed.is_set():
            ready, _, _ = select.select([client, server], [], [], 0.05)
            for end in ready:
                data = end.recv(65536)
                if not data:
                    return
                (server if end is client else client).sendall(data)


def read_packet(client: socket.socket) -> bytes:
    """Return a packet without its length."""
    [length] = struct.unpack("!I", client.recv(4, socket.MSG_WAITALL))
    return client.recv(length - 4, socket.MSG_WAITALL)


def parse(packet: bytes) -> Startup:
    words = packet[4:].rstrip(b"\0").split(b"\0")
    return {name.decode(): value.decode() for name, value in zip(words[::2], words[1::2], strict=False)}


def unparse(startup: Startup) -> bytes:
    return b"".join(f"{name}\0{value}\0".encode() for name, value in startup.items()) + b"\0"
