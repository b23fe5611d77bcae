"""Leaves the tests of the integrations out where their libraries are not installed."""

from __future__ import annotations

from importlib.util import find_spec


def is_installed(name: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # its parent
        return False


NEEDED = ("sentry_sdk", "opentelemetry.sdk", "opentelemetry.instrumentation.psycopg")
collect_ignore_glob = [] if all(map(is_installed, NEEDED)) else ["test_*.py"]
