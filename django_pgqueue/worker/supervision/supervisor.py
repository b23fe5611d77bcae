"""The supervisor: the parent of the worker processes, even of a single one. `runworker` creates and runs it.

It sends the heartbeats, because C code that holds the interpreter lock would stop a heartbeat thread in the worker
process, and because only the parent notices at once that a child has died. Its only other thread reports its health,
and pauses while it forks. It calls neither application code nor log handlers, because these may block: `settlement` and
`log_process` call them in other processes. If a child dies, its executions are closed without waiting for their leases.
A child that has shown no sign of life for ten minutes gets no more heartbeats and is killed.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import Final, NoReturn

from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.waker import Waker
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker import worker_process
from django_pgqueue.worker.claiming.next_scan import SharedScans
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime import django_connections
from django_pgqueue.worker.runtime.clone_guard import clone_guard
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.counts import counts
from django_pgqueue.worker.runtime.health_report import HealthReport
from django_pgqueue.worker.runtime.outages import is_expected, outage_log
from django_pgqueue.worker.runtime.process_info import ended_children
from django_pgqueue.worker.runtime.shared_memory import ExitReason, ProcessState, health_memory, lease_clock
from django_pgqueue.worker.runtime.worker_memory import WorkerMemory
from django_pgqueue.worker.slots.queue_slots import Allowance

from . import watchdog
from .health_thread import HealthFile, health_thread
from .heartbeat import EXITED_AT_ONCE, ChildProcess, HeartbeatSender, register
from .helper_processes import HelperProcesses
from .live_line import LiveLine, counts_of_children
from .startup import wait_until_ready
from .stop_deadline import StopDeadline
from .stop_signals import PassedOnSignals, StopSignals

RESTART_BACKOFF_SECONDS: Final = (0.0, 0.2, 1.0, 5.0, 15.0)
"""The delays before processes that died are replaced. The first is replaced at once."""
HEALTHY_SECONDS: Final = 30.0
"""A process that lived longer than this before it died resets the backoff."""
logger = logging.getLogger("django_pgqueue.worker")
SUPERVISOR: Final = "supervisor"
TURN_SECONDS: Final = 1.0


class RestartBackoff:
    """The delays before processes that died are replaced.

    Processes that die together, as all of a worker do at a failover, take one step of the backoff. If each took one, a
    worker with five processes would start none for 15 s after a failover, although no replacement has failed.
    """

    def __init__(self) -> None:
        self._restarts = 0
        self._stepped_at = self._due_at = float("-inf")

    def seconds_after(self, process: ChildProcess) -> float:
        """Return how long to wait before a process that has died now is replaced."""
        now = time.monotonic()
        if now - process.born_at > HEALTHY_SECONDS:
            self._restarts = 0
        elif process.born_at < self._stepped_at:  # it is not the replacement of the process that died then
            return max(0.0, self._due_at - now)
        seconds = RESTART_BACKOFF_SECONDS[min(self._restarts, len(RESTART_BACKOFF_SECONDS) - 1)]
        self._restarts += 1
        self._stepped_at, self._due_at = now, now + seconds
        return seconds


def vacant_place(children: Collection[ChildProcess], options: Options) -> int | None:
    """Return the first place without a process, or None. A retiring process leaves its place free."""
    keep_all = options.until_empty
    taken = {process.place for process in children if keep_all or not process.state.retires}
    return next((place for place in range(options.processes) if place not in taken), None)


def retiring_at(children: Collection[ChildProcess], place: int) -> ProcessState | None:
    """Return the shared memory of the process that retires from this place, or None. There is at most one."""
    states = (process.state for process in children if process.place == place)
    return next((state for state in states if state.retires), None)


def log_failed_step(error: Exception) -> None:
    """Log the exception of a step that is tried again, unless a line was logged less than a second ago."""
    if is_expected(error):
        outage_log.report(SUPERVISOR, error)
        outage_log.failing(SUPERVISOR)
    elif outage_log.may_log():
        extra = event("supervisor_failed")
        logger.error("a step of the supervisor failed and will be retried", exc_info=error, extra=extra)


class Supervisor:
    """Starts, monitors, replaces and stops the worker processes, and sends their heartbeats.

    Args:
        options: The worker's options.
        listener: The socket of the metrics port, or None.
        memory: The shared memory that a main process has created, or None.
        passed_on: The signals of that main process.
    """

    def __init__(
        self,
        options: Options,
        listener: socket.socket | None = None,
        memory: WorkerMemory | None = None,
        passed_on: PassedOnSignals | None = None,
    ) -> None:
        self.options = options
        self.link = Link(options.database, "supervisor")
        self.link.statement_timeout_seconds = max(1.0, get_settings().heartbeat_seconds)
        self.children: dict[int, ChildProcess] = {}
        self.signals = StopSignals(self._on_signal, passed_on)
        self.stopping_since: float | None = None
        self.deadline = StopDeadline(options.grace_seconds, self._end_children, partial(self._exit_at_once, 1))
        self._backoff = RestartBackoff()
        self._spawn_at = 0.0
        self._spawned = 0
        self.heartbeats = HeartbeatSender(self.link, options)
        self.shared_scans = SharedScans(options.processes)
        self.memory = memory or WorkerMemory(options.processes, counting=listener is not None)
        report = HealthReport(self.memory, options.release)
        self.health_file = HealthFile(options.health_file, report)
        self.health = health_thread(self.health_file, report)
        self.helpers = HelperProcesses(options, listener, self.link, self.health, report, self._close_inherited)
        self.live_line = LiveLine(partial(counts_of_children, self.children), is_enabled=options.live_line)
        self._waker = Waker()

    def run(self) -> int:
        """Work until a signal arrives or the queues are empty; return 0 if no execution is left open, otherwise 1."""
        counts.use(self.memory.supervisor_counts)
        self.helpers.log.start()
        self.helpers.metrics.start()
        self.health.start()
        self.signals.listen(self._waker)
        clone_guard.start(self.options.database)
        wait_until_ready(self.options, self._should_wait, self._wait)
        self._turn()
        while self.children or not self._starts_no_more():
            self._sleep()
            self._turn()
        self.helpers.end(self._survive, self._wait_and_reap, self.deadline.left_seconds)
        self._close()
        return 0 if not self.helpers.settlement.ended else 1

    def _should_wait(self) -> bool:
        """Return whether to continue waiting for a database that is not ready; called before each check."""
        self.memory.round_finished(is_foreign=clone_guard.is_foreign)
        self.signals.tick()
        self._reap()
        self.helpers.metrics.keep_running()
        return self.stopping_since is None

    def _wait_for_adoption(self) -> None:
        """Kill the worker processes, and wait until the database belongs to this installation.

        Their executions are not charged with a crash. An orderly stop would rescue and prune until it ends.
        """
        watchdog.end_all(self.children.values())
        self.link.close()
        wait_until_ready(self.options, self._should_wait, self._wait_and_reap)

    def _close(self) -> None:
        self.deadline.close()
        self.signals.close()
        self.live_line.close()
        self._waker.close()
        self.health.close()
        self.health_file.remove()
        self.link.close()
        self.helpers.metrics.close()
        self.helpers.log.close()

    def _starts_no_more(self) -> bool:
        return self.stopping_since is not None or (self.options.until_empty and self._spawned >= self.options.processes)

    def _turn(self) -> None:
        self.memory.round_finished(is_foreign=clone_guard.is_foreign)
        self.signals.tick()
        self._reap()
        if clone_guard.is_foreign:
            self._wait_for_adoption()
        if self.stopping_since is None and watchdog.is_stop_requested(self.children.values()):
            self._stop()
        self._spawn_missing()
        self._survive(lambda: self.heartbeats.send(self.children.values()))
        self._survive(self.helpers.settlement.tick)
        watchdog.check_all(self.children.values())
        outage_log.log_end_if_over()
        self.helpers.tick(stopping=self.stopping_since is not None)
        self.live_line.draw()

    def _survive(self, step: Callable[[], None]) -> bool:
        """Run a step that needs the database; return whether it succeeded. The next round repeats a failed step."""
        try:
            step()
            return True
        except Exception as error:  # noqa: BLE001 -- it is logged, and the next round repeats the step
            self.heartbeats.postpone(error)
            health_memory.errors += 1
            log_failed_step(error)
            return False

    # ---------------------------------------------------------------- signals

    def _on_signal(self, count: int) -> None:
        """Stop within the grace period at the first signal, release all jobs at the second, exit at the third."""
        if count >= 3:
            self._exit_at_once(130)
        self._stop()

    def _end_children(self) -> None:
        watchdog.end_all(list(self.children.values()))

    def _exit_at_once(self, exit_code: int) -> NoReturn:
        """Exit without closing the executions that are open."""
        self._end_children()
        self.helpers.settlement.kill_remaining()
        self.live_line.close()
        os._exit(exit_code)

    def _stop(self) -> None:
        self.stopping_since = self.memory.stopping_since = self.stopping_since or time.monotonic()
        self.deadline.start()
        self._order_all()

    def _order_all(self) -> None:
        order = worker_process.STOP if self.signals.count <= 1 else worker_process.RELEASE
        watchdog.order_all(self.children.values(), order)

    def _sleep(self) -> None:
        """Sleep until the next heartbeat, retry, restart, signal or exit of a child, but no longer than a second."""
        timeout_seconds = min(TURN_SECONDS, self.heartbeats.retry_in_seconds())
        if self.children:
            timeout_seconds = min(timeout_seconds, max(0.0, self.heartbeats.due_at - time.monotonic()))
        if self._wants_more():
            timeout_seconds = min(timeout_seconds, max(0.0, self._spawn_at - time.monotonic()))
        self._wait(timeout_seconds)

    def _wait(self, seconds: float) -> None:
        """Sleep until a signal arrives, a child ends, or the time is over."""
        self._waker.wait(seconds)

    def _wait_and_reap(self, seconds: float) -> None:
        self._wait(seconds)
        self._reap()

    # ---------------------------------------------------------------- children

    def _wants_more(self) -> bool:
        return not self._starts_no_more() and vacant_place(self.children.values(), self.options) is not None

    def _spawn_missing(self) -> None:
        while self._wants_more() and time.monotonic() >= self._spawn_at:
            if not self._survive(self._spawn):
                self._spawn_at = self.heartbeats.retry_at

    def _spawn(self) -> None:
        with self.link.use() as connection:
            django_connections.close_for_good()
            process = self._fork(vacant_place(self.children.values(), self.options) or 0)
            self._spawned += 1
            try:
                worker_id = register(connection, self.options, process.pid)
            except BaseException:
                watchdog.kill(process.pid)  # it would wait for its id forever
                raise
        self._spawn_at = 0.0
        # A child reads its id first, so `_order_all()` skips a child without an id. An order it missed is sent below.
        os.write(process.orders, f"{worker_id}\n".encode())
        process.worker_id = process.health_memory.worker_id = worker_id
        if self.stopping_since is not None:
            self._order_all()

    def _fork(self, place: int) -> ChildProcess:
        allowance = Allowance(self.options.concurrency, retiring_at(self.children.values(), place))
        process_state = ProcessState(worker_process.slots(self.options))
        process_state.lease_until = lease_clock() + get_settings().LEASE
        child_health = self.memory.free_place()
        child_health.started_at, child_health.lease_until = time.monotonic(), process_state.lease_until
        reader, writer = os.pipe()
        try:
            with self.health.paused():
                pid = os.fork()
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        if pid == 0:
            try:
                os.close(writer)
                self._close_inherited()
                health_memory.become(child_health)
                counts.use(self.memory.counts_of(child_health))
                self.shared_scans.place = place
                worker_process.main(self.options, process_state, reader, allowance, self.shared_scans)
            finally:
                os._exit(1)  # never return into the parent's code: this process would be a second supervisor
        os.close(reader)
        child_health.pid = pid
        process = ChildProcess(process_state, pid, writer, place=place, health_memory=child_health)
        self.children[pid] = process
        return process

    def _close_inherited(self) -> None:
        """Close the supervisor's pipes in a forked process. Otherwise the pipes would stay open after its end."""
        for sibling in self.children.values():
            os.close(sibling.orders)
        self.helpers.log.close_pipe()
        self.helpers.metrics.close_inherited()
        self.link.forget_in_child()

    def _reap(self) -> None:
        for pid, exit_code in ended_children():
            if pid in self.children:
                self._child_ended(self.children.pop(pid), exit_code)
            else:
                self.helpers.reaped(pid, exit_code)

    def _child_ended(self, process: ChildProcess, exit_code: int) -> None:
        os.close(process.orders)
        process.state.is_gone = True
        process.health_memory.pid = 0
        exit_reason = process.state.exit_reason
        process.expected_to_end |= exit_reason is not ExitReason.NONE
        self.helpers.settlement.add(process)
        watchdog.log_exit(process, exit_code)
        counts.process_ended(exit_reason)
        clone_guard.is_foreign |= exit_reason is ExitReason.FOREIGN  # the supervisor now checks by itself
        if exit_reason is ExitReason.PROMOTED:
            self.link.close()  # a pooler can keep it over the promotion; the next connection shows the timeline
        if exit_reason in (ExitReason.NONE, ExitReason.STUCK) or exit_reason in EXITED_AT_ONCE:
            self._spawn_at = time.monotonic() + self._backoff.seconds_after(process)
        if self.options.until_empty and exit_reason is not ExitReason.EMPTY:
            self._spawned -= 1
