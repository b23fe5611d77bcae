"""Ports for servers of a scenario's own."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on just now."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
