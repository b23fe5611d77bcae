"""The worker: a supervisor process, and under it the worker processes that run jobs.

The command `runworker` imports `Options`, `Supervisor`, and `SupervisorGroup` for several databases. See
docs/internals/architecture.md.
"""

from .options import Options
from .supervision.supervisor import Supervisor
from .supervision.supervisor_group import SupervisorGroup

__all__ = ["Options", "Supervisor", "SupervisorGroup"]
