"""The options of one worker, as `runworker` received them. All parts of the worker read them; none changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from django_pgqueue.ground.readings import Reading
from django_pgqueue.ground.served_queues import ServedQueues
from django_pgqueue.options.task_options import Isolation
from django_pgqueue.settings.conf import get_settings


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line of `runworker`. Options that were not given have the value of their setting, or None."""

    database: str
    queue_names: tuple[str, ...] = ()
    """Queues to serve, strictly in this order. An empty tuple means all queues."""
    queue_concurrency: Mapping[str, int | None] = field(default_factory=dict)
    """The values of `--queue` (see `ServedQueues`). If there are any, `queue_names` has no order."""
    concurrency: int = field(default_factory=lambda: get_settings().CONCURRENCY)
    processes: int = field(default_factory=lambda: get_settings().PROCESSES)
    until_empty: bool = False
    """Exit when no due job is left."""
    max_jobs: int | None = None
    """Replace a process after this many jobs."""
    max_rss_mb: int | None = None
    """Replace a process whose resident memory exceeds this many MiB."""
    grace_seconds: float = field(default_factory=lambda: get_settings().GRACE)
    listen: bool = True
    isolation: Isolation | None = None
    """"process": run every job in an isolated process, whatever its task says."""
    health_file: str | None = None
    """The path of the file to which the worker writes its health once a second."""
    release: str = ""
    """The name of the project's release that the worker runs. "": it has none."""
    live_line: bool = False
    """Whether the supervisor shows a line about the worker at the bottom of the terminal."""
    metrics_port: int | None = field(default_factory=lambda: get_settings().METRICS_PORT)
    """The TCP port of `/livez`, `/readyz` and `/metrics`. 0: any free port. None: no port."""
    metrics_address: str = field(default_factory=lambda: get_settings().METRICS_ADDRESS)
    read_queue: Callable[[], Sequence[Reading]] | None = None
    """Reads the figures of the queue for `/metrics`. None: that page has the figures of the worker only."""

    @property
    def served(self) -> ServedQueues:
        """The queues of the worker."""
        return ServedQueues(self.queue_names, self.queue_concurrency)
