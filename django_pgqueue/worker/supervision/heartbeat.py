"""Send the heartbeats of a supervisor, which extend the leases of its worker processes.

The supervisor calls `HeartbeatSender.send()` in its main thread. One statement extends the leases of all its processes,
however many jobs they run. `settlement` closes the executions of processes that have ended.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

import django_pgqueue
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.reconnects import is_lost_connection
from django_pgqueue.lifecycle import leases, workers
from django_pgqueue.lifecycle.types import Heartbeat
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.clone_guard import clone_guard
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.outages import outage_log
from django_pgqueue.worker.runtime.process_info import resident_mib_of
from django_pgqueue.worker.runtime.refusals import Refusals
from django_pgqueue.worker.runtime.service import RetryPauses
from django_pgqueue.worker.runtime.shared_memory import ExitReason, HealthMemory, ProcessState, lease_clock

EXITED_AT_ONCE: Final = {
    ExitReason.LEASE_LOST: "the leases have expired, so it was terminated; its jobs are ready again",
    ExitReason.PROMOTED: "the database was promoted, so it exited; its jobs are ready again",
    ExitReason.FOREIGN: "the database belongs to another installation, so it exited",
}
"""Exit reasons of processes that exit without logging. The supervisor logs these texts for them."""
RETRY_SECONDS: Final = 1.0
"""The longest pause of the supervisor after an error. Heartbeats are urgent after an outage."""


def register(connection: EngineConnection, options: Options, pid: int, worker_id: int | None = None) -> int:
    """Register a worker process, or the process of a foreground run; return its id: `worker_id`, or a new one for None.

    Called by the supervisor after it has forked a process, by a heartbeat that finds the record missing because the
    tables were emptied, and by `foreground_run`. Worker ids are never reused, so a record that is written again under
    its old id still names the same process.
    """
    return workers.register_worker(
        connection,
        hostname=socket.gethostname(),
        pid=pid,
        supervisor_pid=os.getpid() if pid != os.getpid() else None,
        version=django_pgqueue.__version__,
        release=options.release,
        queue_names=options.served.as_text(),
        concurrency=options.concurrency,
        worker_id=worker_id,
    )


@dataclass
class ChildProcess:
    """One worker process as its supervisor knows it, until its executions are closed."""

    state: ProcessState
    pid: int
    orders: int
    worker_id: int = 0
    place: int = 0
    """Its place among the supervisor's PROCESSES, counted from 0."""
    born_at: float = field(default_factory=time.monotonic)
    signs_of_life: int = 0
    alive_at: float = field(default_factory=time.monotonic)
    silent: bool = False
    """Whether it was killed because it showed no signs of life. It gets no more heartbeats, even if it cannot die."""
    overdue: frozenset[int] = frozenset()
    """Executions past their timeout, for which it was killed."""
    health_memory: HealthMemory = field(default_factory=HealthMemory)
    expected_to_end: bool = False
    """Whether its end, with any exit code, does not count as a crash."""


class HeartbeatSender:
    """Extends the leases of one supervisor's worker processes, and records which of their jobs have started."""

    def __init__(self, link: Link, options: Options) -> None:
        self.link = link
        self.options = options
        self.due_at = 0.0
        """When the next heartbeat is due, by the monotonic clock."""
        self.refusals = Refusals("the heartbeat of worker")
        self.refused_starts = Refusals("the start of execution")
        self.retry_at = 0.0
        """When the supervisor tries again after an error."""
        self._must_retry = False
        self._pauses = RetryPauses()
        link.gate.limit_seconds = RETRY_SECONDS

    def postpone(self, error: BaseException) -> None:
        """Send no heartbeat for a while after an error of the supervisor."""
        is_lost = is_lost_connection(error)
        pause_seconds = min(RETRY_SECONDS, self._pauses.after(error)) if is_lost else RETRY_SECONDS
        self.retry_at = time.monotonic() + pause_seconds
        self.due_at = max(self.due_at, self.retry_at)
        self._must_retry = True

    def retry_in_seconds(self) -> float:
        """Return the seconds until the supervisor tries again; infinity without an error since the last call."""
        must_retry, self._must_retry = self._must_retry, False
        return max(0.0, self.retry_at - time.monotonic()) if must_retry else float("inf")

    def send(self, children: Iterable[ChildProcess]) -> None:
        """Extend the leases of these processes if a quarter of a lease has passed since the last time."""
        living = {process.worker_id: process for process in children if process.worker_id and not process.silent}
        if time.monotonic() < self.due_at or not living:
            return
        sent_at, lease_until = time.monotonic(), lease_clock() + get_settings().LEASE
        with self.link.use() as connection:
            clone_guard.check(connection)  # a dump can be restored without a reconnect
            answers = leases.extend(
                connection,
                list(living),
                lease_seconds=get_settings().LEASE,
                resident_mib={worker_id: resident_mib_of(process.pid) for worker_id, process in living.items()},
                on_refused=self.refusals.note,
            )
            left = [
                worker_id
                for worker_id, process in living.items()
                if not self._is_extended(connection, process, answers.get(worker_id), lease_until)
            ]
            self._note_started(connection, living.values())
        self._pauses.succeeded()
        outage_log.recovered("supervisor")
        self.due_at = sent_at + (RETRY_SECONDS if left else get_settings().heartbeat_seconds)

    def _is_extended(
        self, connection: EngineConnection, process: ChildProcess, answer: Heartbeat | None, lease_until: float
    ) -> bool:
        """Tell a process until when its lease lasts, and whether an operator has requests to it.

        Return whether its lease was extended. Register it again if its record was deleted.
        """
        if answer is None:
            register(connection, self.options, process.pid, process.worker_id)
            return False
        if answer.has_requests:
            process.state.has_requests = True
        if answer.is_extended:
            process.state.lease_until = process.health_memory.lease_until = lease_until
        return answer.is_extended

    def _note_started(self, connection: EngineConnection, processes: Collection[ChildProcess]) -> None:
        """Record which executions have started, in case their processes are lost."""
        started_ids = sorted(execution_id for process in processes for execution_id in process.state.running())
        worker_ids = [process.worker_id for process in processes]
        if started_ids:
            for refused in leases.note_started(connection, worker_ids, started_ids):
                self.refused_starts.note(refused.row, refused.error)
