"""The worker: a supervisor process, and under it the processes that run jobs. See docs/architecture.md."""

from .options import Options
from .supervisor import Supervisor

__all__ = ["Options", "Supervisor"]
