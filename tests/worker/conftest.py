"""Provide the `start` fixture of the process tests, which starts worker processes, to the tests in this directory."""

from tests.process.conftest import start

__all__ = ["start"]
