"""The worker process of the process tests, for those here that need one."""

from tests.process.conftest import start

__all__ = ["start"]
