"""The parent of the worker processes: always there, for one too.

It beats for its children, because C code that keeps the interpreter to itself stops a thread's beat, and a process of
its own is the only one that sees a child die at once. It has no threads, so that forking is safe. It calls no code of
the application and no log handler, because these may block: `settlement` and `log_process` do, in other processes.

A child that dies has its executions settled without waiting for leases. A child that has shown no life for ten minutes
is no longer beaten for, and is killed.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from django_pgqueue.conf import get_settings

from . import child, hygiene, watchdog
from .allowance import Allowance
from .board import Board, Farewell, lease_clock
from .health import HealthFile
from .helper_processes import HelperProcesses
from .leases import EXITED_AT_ONCE, Leases, Process, how_it_died
from .link import Link
from .options import Options
from .pulse import Pulse, pulse
from .readiness import wait_until_ready
from .registration import register
from .shared_looks import SharedLooks
from .trouble import is_expected, trouble
from .watchdog import kill

logger = logging.getLogger("django_pgqueue.worker")

TURN_SECONDS: Final = 1.0
RESTART_PAUSES_SECONDS: Final = (0.0, 0.2, 1.0, 5.0, 15.0)
"""Before a child that died is replaced: at once the first time, then with growing patience."""
HEALTHY_SECONDS: Final = 30.0
"""A child that lived for this long before it died begins the pauses anew."""
KILL_AFTER_GRACE_SECONDS: Final = 12.0
SAID: Final = ("stopping; running jobs have their grace", "giving back at once")


class Supervisor:
    """Starts, watches, beats for, replaces and stops the worker processes."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.link = Link(options.database, "supervisor")
        self.link.statement_timeout_seconds = max(1.0, get_settings().beat_seconds)
        self.children: dict[int, Process] = {}
        self.signals = 0
        self._signals_told = 0
        self.stopping_since: float | None = None
        self._restarts = 0
        self._spawn_at = 0.0
        self._spawned = 0
        self.leases = Leases(self.link, options)
        self.looks = SharedLooks(options.processes)
        self.health = HealthFile(options.health_file, self.children, lambda: self.stopping_since is not None)
        self.helpers = HelperProcesses(self.link, self.health, self._leave_behind)
        self._wake_reader, self._wake_writer = socket.socketpair()

    def run(self) -> int:
        """Work until told to stop, or drained; return the exit code: 0 if nothing is left in hand."""
        self.helpers.log.start()
        self.health.start()
        self._listen_to_signals()
        wait_until_ready(self.options.database, self._waits, self._nap)
        self._turn()
        while not self._is_over():
            self._sleep()
            self._turn()
        self.helpers.settle_at_end(self._survive, self._nap_and_reap)
        self._close()
        return 0 if not self.helpers.settlement.ended else 1

    def _waits(self) -> bool:
        """Whether to wait for a database that is not ready; called again and again."""
        self.health.turned()
        return self.stopping_since is None

    def _close(self) -> None:
        signal.set_wakeup_fd(-1)
        self._wake_reader.close()
        self._wake_writer.close()
        self.health.close()
        self.link.close()
        self.helpers.log.close()

    def _is_over(self) -> bool:
        if self.children:
            return False
        return self.stopping_since is not None or (self.options.drain and self._spawned >= self.options.processes)

    def _turn(self) -> None:
        self.health.turned()
        while self._signals_told < self.signals:  # not in the handler: a log line may be half written there
            logger.warning("signal: %s", SAID[self._signals_told])
            self._signals_told += 1
        self._reap()
        self._spawn_missing()
        self._survive(lambda: self.leases.beat(self.children.values()))
        self._survive(self.helpers.settlement.tick)
        watchdog.look_after(self.children.values())
        self._enforce_grace()
        trouble.settle()
        self.helpers.log.look_after()

    def _survive(self, step: Callable[[], None]) -> bool:
        """Run a step that needs the database; it comes round again if that is away. Return whether it was not."""
        try:
            step()
            return True
        except Exception as error:
            self.leases.put_off(1.0)
            pulse.erred()
            if is_expected(error):
                trouble.report("supervisor", error)
            elif trouble.may_speak():
                logger.exception("a step of the supervisor failed; it is tried again")
            return False

    # ---------------------------------------------------------------- signals

    def _listen_to_signals(self) -> None:
        os.set_blocking(self._wake_writer.fileno(), False)
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """First: stop within the grace. Second: give back at once. Third: end here and now."""
        self.signals += 1
        if self.signals >= 3:
            for process in self.children.values():
                kill(process.pid)
            os._exit(130)
        self.stopping_since = self.stopping_since or time.monotonic()
        self._order_all()

    def _order_all(self) -> None:
        order = child.STOP if self.signals == 1 else child.RELEASE
        for process in [one for one in list(self.children.values()) if one.worker_id]:
            process.expected_to_end = True
            try:
                os.write(process.orders, order)
            except OSError:
                logger.debug("child %d takes no orders any more", process.pid)

    def _sleep(self) -> None:
        """Sleep until there is something to do."""
        timeout_seconds = TURN_SECONDS
        if self.children:
            timeout_seconds = min(timeout_seconds, max(0.0, self.leases.beat_at - time.monotonic()))
        if self._wants_more():
            timeout_seconds = min(timeout_seconds, max(0.0, self._spawn_at - time.monotonic()))
        self._nap(timeout_seconds)

    def _nap(self, seconds: float) -> None:
        """Sleep, but not through a signal or a child's end."""
        if select.select([self._wake_reader], [], [], seconds)[0]:
            self._wake_reader.recv(4096)

    def _nap_and_reap(self, seconds: float) -> None:
        self._nap(seconds)
        self._reap()

    # ---------------------------------------------------------------- children

    def _wants_more(self) -> bool:
        if self.stopping_since is not None or (self.options.drain and self._spawned >= self.options.processes):
            return False
        return self._vacant_place() is not None

    def _vacant_place(self) -> int | None:
        """Return the first place where no process works, or None. A retiring process leaves its place."""
        staying = [process for process in self.children.values() if self.options.drain or not process.board.retires]
        taken = {process.place for process in staying}
        return next((place for place in range(self.options.processes) if place not in taken), None)

    def _retiring_at(self, place: int) -> Board | None:
        """Return the shared memory of the process that retires from this place: there is at most one."""
        boards = (process.board for process in self.children.values() if process.place == place)
        return next((board for board in boards if board.retires), None)

    def _spawn_missing(self) -> None:
        while self._wants_more() and time.monotonic() >= self._spawn_at:
            self._survive(self._spawn)

    def _spawn(self) -> None:
        self._spawn_at = time.monotonic() + 1.0  # should the database be away
        with self.link.use() as connection:
            hygiene.close_for_good()
            process = self._fork(self._vacant_place() or 0)
            self._spawned += 1
            try:
                worker_id = register(connection, self.options, process.pid)
            except BaseException:
                kill(process.pid)  # without an id it would wait for ever
                raise
        self._spawn_at = 0.0
        # The id is the first that a child reads: a signal just now finds it without one, and leaves the order to us.
        os.write(process.orders, f"{worker_id}\n".encode())
        process.worker_id = worker_id
        if self.stopping_since is not None:
            self._order_all()

    def _fork(self, place: int) -> Process:
        allowance = Allowance(self.options.concurrency, self._retiring_at(place))
        board = Board(child.slots(self.options))
        board.hold_until(lease_clock() + get_settings().LEASE)
        own_pulse = Pulse()
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
                self._leave_behind()
                pulse.become(own_pulse)
                self.looks.place = place
                child.main(self.options, board, reader, allowance, self.looks)
            finally:
                os._exit(1)  # whatever happens, never back into the parent's code: it would be a second supervisor
        os.close(reader)
        process = Process(board, pid, writer, place=place, pulse=own_pulse)
        self.children[pid] = process
        return process

    def _leave_behind(self) -> None:
        """In a process just forked: let go of what is the supervisor's, so that its end is seen as the pipes' end."""
        for sibling in self.children.values():
            os.close(sibling.orders)
        self.helpers.log.close_pipe()
        self.link.forget_in_child()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            exit_code = os.waitstatus_to_exitcode(status)
            if pid in self.children:
                self._ended(self.children.pop(pid), exit_code)
            else:
                self.helpers.reaped(pid, exit_code)

    def _ended(self, process: Process, exit_code: int) -> None:
        os.close(process.orders)
        process.board.mark_gone()
        farewell = process.board.farewell
        process.expected_to_end |= farewell is not Farewell.NONE
        self.helpers.settlement.ended.append(process)
        if farewell is Farewell.RECYCLED:
            logger.info("worker process %d is replaced", process.pid)
        elif farewell in EXITED_AT_ONCE:
            # Each process has reported a promotion itself, as trouble with the database.
            level = logging.INFO if farewell is Farewell.PROMOTED else logging.CRITICAL
            reason = EXITED_AT_ONCE[farewell]
            logger.log(level, "worker process %d: %s; its jobs are given back", process.pid, reason)
        elif not process.expected_to_end:
            logger.error("worker process %d died (%s)", process.pid, how_it_died(exit_code))
        elif farewell is Farewell.STUCK:
            logger.error("worker process %d could not go on: its jobs are given back", process.pid)
        if farewell in (Farewell.NONE, Farewell.STUCK) or farewell in EXITED_AT_ONCE:
            self._pause_before_restart(process)
        if self.options.drain and farewell is not Farewell.DRAINED:
            self._spawned -= 1

    def _pause_before_restart(self, process: Process) -> None:
        self._restarts = 0 if time.monotonic() - process.born_at > HEALTHY_SECONDS else self._restarts
        pause_seconds = RESTART_PAUSES_SECONDS[min(self._restarts, len(RESTART_PAUSES_SECONDS) - 1)]
        self._restarts += 1
        self._spawn_at = time.monotonic() + pause_seconds

    # ---------------------------------------------------------------- watching over them

    def _enforce_grace(self) -> None:
        if self.stopping_since is None:
            return
        if time.monotonic() > self.stopping_since + self.options.grace_seconds + KILL_AFTER_GRACE_SECONDS:
            for process in self.children.values():
                kill(process.pid)
