"""The worker: a supervisor process, and under it the worker processes that run jobs.

The command `runworker` imports `Options` and `Supervisor`. See docs/internals/architecture.md.
"""

from .options import Options
from .supervision.supervisor import Supervisor

__all__ = ["Options", "Supervisor"]
