"""Send the heartbeats of a supervisor, which extend the leases of the executions that its worker processes have open.

The supervisor calls `HeartbeatSender.send()` in its only thread. One statement extends the leases of all its worker
processes. `settlement` closes the executions of processes that have ended.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import django_pgqueue
from django_pgqueue import lifecycle
from django_pgqueue.conf import get_settings
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.db.reconnects import is_lost_connection
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
MARK_HEARTBEATS: Final = 4
"""A heartbeat scans ids from the oldest one that was open this many heartbeats ago, because all smaller ids are closed.
The oldest id of the last heartbeat would be too recent: a claim draws its ids before it commits, and it may take two
heartbeats before it is abandoned."""


def register(connection: EngineConnection, options: Options, pid: int, worker_id: int | None = None) -> int:
    """Register a worker process under `worker_id`, or under a new id if that is None; return the id.

    Called by the supervisor after it has forked a process, by a heartbeat that finds the record missing because the
    tables were emptied, and by `foreground_run`. Worker ids are never reused, so a record that is written again under
    its old id still names the same process.
    """
    return lifecycle.register_worker(
        connection,
        hostname=socket.gethostname(),
        pid=pid,
        supervisor_pid=os.getpid() if pid != os.getpid() else None,
        version=django_pgqueue.__version__,
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
    """Extends the leases of one supervisor's worker processes."""

    def __init__(self, link: Link, options: Options) -> None:
        self.link = link
        self.options = options
        self.due_at = 0.0
        """When the next heartbeat is due, by the monotonic clock."""
        self.refusals = Refusals("the heartbeat of execution")
        self.retry_at = 0.0
        """When the supervisor tries again after an error."""
        self._must_retry = False
        self._pauses = RetryPauses()
        link.gate.limit_seconds = RETRY_SECONDS
        self._record_at = 0.0
        self._connected_at = 0.0
        self._oldest_open: deque[int] = deque([0] * MARK_HEARTBEATS, maxlen=MARK_HEARTBEATS)

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
        """Extend the leases of these processes' executions if a quarter of a lease has passed since the last time."""
        living = [process for process in children if process.worker_id and not process.silent]
        if time.monotonic() < self.due_at or not living:
            return
        sent_at, lease_from = time.monotonic(), lease_clock()
        lease_seconds = get_settings().LEASE
        worker_ids = [process.worker_id for process in living]
        started_ids = [execution_id for process in living for execution_id in process.state.running()]
        with self.link.use() as connection:
            if self.link.connected_at != self._connected_at:  # after a failover the server's ids may be smaller
                self._connected_at = self.link.connected_at
                self._oldest_open.extend([0] * MARK_HEARTBEATS)
            clone_guard.check(connection)  # a dump can be restored without a reconnect
            open_executions = lifecycle.extend(
                connection,
                worker_ids,
                lease_seconds=lease_seconds,
                started_ids=started_ids,
                first_id=self._first_id(started_ids),
                on_refused=self.refusals.note,
            )
            if time.monotonic() >= self._record_at:
                # A record that is older than a lease means that the worker is lost, so the next one comes before that.
                self._record_at = time.monotonic() + lease_seconds - get_settings().heartbeat_seconds
                self._record(connection, living)
        self._oldest_open.append(min((execution.execution_id for execution in open_executions), default=0))
        counts = Counter(execution.worker_id for execution in open_executions)
        for process in living:
            process.state.open_executions = counts[process.worker_id]
            process.state.lease_until = process.health_memory.lease_until = lease_from + lease_seconds
        self._pauses.succeeded()
        outage_log.recovered("supervisor")
        self.due_at = sent_at + get_settings().heartbeat_seconds

    def _first_id(self, started_ids: Iterable[int]) -> int:
        """Return the id to start at. It is 0 if a running job has a smaller id, because ids have restarted then."""
        if min(started_ids, default=self._oldest_open[0]) < self._oldest_open[0]:
            self._oldest_open.extend([0] * MARK_HEARTBEATS)
        return self._oldest_open[0]

    def _record(self, connection: EngineConnection, processes: Iterable[ChildProcess]) -> None:
        """Record that these processes are alive. Register a process again if its record was deleted.

        Operators read these records to see which workers exist. The answer says which processes have requests of an
        operator, in case the notification was lost or no notifications arrive.
        """
        by_id = {process.worker_id: process for process in processes}
        resident_mib = {worker_id: resident_mib_of(process.pid) for worker_id, process in by_id.items()}
        registered = lifecycle.record_heartbeats(connection, list(by_id), resident_mib)
        for worker_id, process in by_id.items():
            if registered.get(worker_id):
                process.state.has_requests = True
            if worker_id not in registered:
                register(connection, self.options, process.pid, worker_id)
