"""The main process of a worker with several databases: it runs one supervisor for each database.

`runworker` creates a `SupervisorGroup` if it gets more than one alias. Each supervisor is a forked process that works
as if it were alone, so an outage of one database does not concern the others. The main process sends no statement. It
passes signals on, and it reports for the whole worker: the health file, systemd, the metrics port, the live line.

It protects one invariant: the worker ends as a whole. If a supervisor ends although its database may still have jobs,
the main process stops the others, so that the service manager notices the end and starts the worker again.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final, NoReturn

from django_pgqueue.ground.log_events import event
from django_pgqueue.ground.waker import Waker
from django_pgqueue.worker.options import Options
from django_pgqueue.worker.runtime.exit_functions import forget_inherited_processes, run_exit_functions
from django_pgqueue.worker.runtime.health_report import HealthReport
from django_pgqueue.worker.runtime.process_info import ended_children, exit_code_text
from django_pgqueue.worker.runtime.shared_memory import HealthMemory, health_memory
from django_pgqueue.worker.runtime.worker_memory import WorkerMemory

from .health_thread import HealthFile, health_thread
from .helper_process import fork_helper
from .live_line import LiveLine, counts_of_processes
from .metrics_server import MetricsServer
from .stop_signals import LOOK, PassedOnSignals, StopSignals
from .supervisor import TURN_SECONDS, Supervisor

logger = logging.getLogger("django_pgqueue.worker")

KILLED: Final = 130
"""The exit code after a third signal."""
NAMED: Final = ("django_pgqueue.worker", "django_pgqueue.jobs", "django_pgqueue.db")


class Member:
    """One supervisor of the group.

    Args:
        options: The options of the worker for this database.
        counting: Whether the processes count what they do. The metrics port shows these counts.
    """

    def __init__(self, options: Options, *, counting: bool) -> None:
        self.options = replace(options, health_file=None, live_line=False, metrics_port=None, read_queue=None)
        self.memory = WorkerMemory(options.processes, counting=counting, supervisor=HealthMemory())
        self.pid = 0
        self.finished_elsewhere = 0
        """How many results the other databases had when its supervisor ended."""


class SupervisorGroup:
    """Starts one supervisor for each database, and stops all of them if one ends early.

    Args:
        options: The options of the worker for each database. They differ in the database and in what reads it.
        listener: The socket of the metrics port, or None.
    """

    def __init__(self, options: Sequence[Options], listener: socket.socket | None = None) -> None:
        first = options[0]
        self.members = {each.database: Member(each, counting=listener is not None) for each in options}
        report = HealthReport({alias: member.memory for alias, member in self.members.items()}, first.release)
        reads = {each.database: each.read_queue for each in options if each.read_queue is not None}
        self.health_file = HealthFile(first.health_file, report)
        self.health = health_thread(self.health_file, report)
        self._fork = partial(fork_helper, self.health, self._begin)
        self.metrics = MetricsServer(self._fork, listener, report, reads or None)
        self.live_line = LiveLine(lambda: counts_of_processes(report.living()), is_enabled=first.live_line)
        self.passed_on = PassedOnSignals()
        self.signals = StopSignals(self._on_signal)
        self.exit_code = 0
        self._is_until_empty = first.until_empty
        self._waker = Waker()

    def run(self) -> int:
        """Work until all supervisors have ended; return the worst of their exit codes: 0, or 1."""
        self.signals.listen(self._waker)
        for member in self.members.values():
            self._start(member)
        self.metrics.start()
        self.health.start()
        while any(self._living()):
            self._waker.wait(TURN_SECONDS)
            self._turn()
            self._serve_again()
        self._close()
        return self.exit_code

    def _start(self, member: Member) -> None:
        name = f"pgq:{member.options.database}".encode()
        member.memory.has_ended = False
        member.memory.round_finished(is_foreign=False)
        member.pid = member.memory.supervisor.pid = self._fork(partial(self._supervise, member), name)

    def _serve_again(self) -> None:
        """Serve a database again if jobs of others have ended since its supervisor found it empty.

        They may have added jobs there. This waits until all databases were empty, so that it happens rarely.
        """
        if self._is_until_empty and not any(self._living()) and not self.exit_code and not self.passed_on.received:
            for member in self.members.values():
                if self._finished_elsewhere(member) > member.finished_elsewhere:
                    self._start(member)

    def _finished_elsewhere(self, member: Member) -> int:
        return sum(other.memory.finished for other in self.members.values() if other is not member)

    def _turn(self) -> None:
        self.signals.tick()
        for pid, exit_code in ended_children():
            for alias, member in self._living():
                if member.pid == pid:
                    self._ended(alias, member, exit_code)
            self.metrics.reaped(pid)
        self.metrics.keep_running()
        self.live_line.draw()

    def _living(self) -> Iterator[tuple[str, Member]]:
        return ((alias, member) for alias, member in self.members.items() if member.pid)

    def _ended(self, alias: str, member: Member, exit_code: int) -> None:
        """Record the end of a supervisor. Stop the others, unless it ended because its database is empty."""
        member.pid = 0
        member.memory.has_ended = True
        member.finished_elsewhere = self._finished_elsewhere(member)
        self.exit_code = max(self.exit_code, int(exit_code != 0))
        was_stopped = exit_code == 0 and bool(member.memory.stopping_since)
        if self.passed_on.received or (self._is_until_empty and exit_code == 0 and not was_stopped):
            return
        reason = "was stopped" if was_stopped else f"has died ({exit_code_text(exit_code)})"
        logger.log(
            logging.WARNING if was_stopped else logging.ERROR,
            "the supervisor of the database %r %s, so the whole worker stops",
            alias,
            reason,
            extra=event("supervisor_ended", database=alias, reason=reason),
        )
        self._pass_on(1)

    def _close(self) -> None:
        self.signals.close()
        self.live_line.close()
        self._waker.close()
        self.health.close()
        self.health_file.remove()
        self.metrics.close()

    # ---------------------------------------------------------------- signals

    def _on_signal(self, count: int) -> None:
        """Pass a signal on. After the third, exit; the supervisors kill their processes and exit too."""
        self._pass_on(count)
        if count >= 3:
            self.live_line.close()
            os._exit(KILLED)

    def _pass_on(self, count: int) -> None:
        self.passed_on.received = max(count, self.passed_on.received)
        for _, member in self._living():
            with suppress(ProcessLookupError):  # a signal came between its end and `_ended()`
                os.kill(member.pid, LOOK)

    # ---------------------------------------------------------------- processes

    def _supervise(self, member: Member) -> NoReturn:
        """Run a supervisor in a forked process, and exit with its exit code."""
        exit_code = 1
        try:
            alias = member.options.database
            forget_inherited_processes()
            health_memory.become(member.memory.supervisor)
            name_database(alias)
            exit_code = Supervisor(member.options, memory=member.memory, passed_on=self.passed_on).run()
        except BaseException:
            logger.exception("the supervisor failed", extra=event("process_failed"))
        finally:
            run_exit_functions()
            os._exit(exit_code)

    def _begin(self) -> None:
        self._waker.close()
        self.metrics.close_inherited()


class DatabaseFilter(logging.Filter):
    """Begins each message with the alias of the database, and adds the field `database`.

    The ids of jobs are unique in one database only, so a line about a job must say which database it means. The
    supervisor of each database calls `name_database()` once, before it forks, so that its processes name the database
    too.
    """

    def __init__(self, alias: str) -> None:
        super().__init__()
        self._alias = alias

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record. Return True: every record passes."""
        name = self._alias.replace("%", "%%") if record.args else self._alias
        record.msg = f"[{name}] {record.msg}"
        record.database = self._alias
        return True


def name_database(alias: str) -> None:
    """Name this database in the records of the engine's loggers, in this process and those that it forks."""
    for name in NAMED:
        logging.getLogger(name).addFilter(DatabaseFilter(alias))
