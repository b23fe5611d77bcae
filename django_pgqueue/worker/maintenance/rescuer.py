"""The duty that rescues the jobs of lost workers.

`Maintenance` calls it in its own thread. A job is rescued if `LeaseWatch` finds that its worker did not extend the
lease although it could. The duty protects live workers after an outage, when all leases look expired.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from django_pgqueue import lifecycle
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.endings import Ending
from django_pgqueue.lifecycle import OpenExecution, TransitionResult, rescues
from django_pgqueue.reactions import JobTransition, Reactions, ended
from django_pgqueue.worker.completion.writer import transitions_of
from django_pgqueue.worker.runtime.connection import ConnectionSource
from django_pgqueue.worker.runtime.refusals import Refusals
from django_pgqueue.worker.runtime.shared_memory import health_memory

from .lease_watch import LeaseWatch, observed_from_seconds

RESCUED: Final = "the worker was lost: its lease ran out"


class Rescuer:
    """Rescues the jobs of lost workers.

    Args:
        link: The connection.
        reactions: The reactions to the transitions.
        delay_for: Returns a job's backoff in seconds, or None for no further attempt.
        on_wait: Called with the seconds for which a commit has waited.
    """

    def __init__(
        self,
        link: ConnectionSource,
        reactions: Reactions,
        delay_for: Callable[[OpenExecution], float | None],
        on_wait: Callable[[float], None],
    ) -> None:
        self.watch = LeaseWatch()
        self._link = link
        self._reactions = reactions
        self._delay_for = delay_for
        self._on_wait = on_wait
        self._unrescued = Refusals("the rescue of execution")

    def rescue(self) -> bool:
        """Look for lost leases, and rescue their jobs. While no lease ends soon, this sends one statement, a read."""
        try:
            with self._link.use() as connection:
                self._look(connection)
        except BaseException:
            self.watch.interrupted()
            raise
        return False

    def _look(self, connection: EngineConnection) -> None:
        leases = rescues.ending_leases(connection, observed_from_seconds())
        if leases:
            began = time.monotonic()
            with self.watch.commit():
                rescues.prove_commit(connection)
            self._on_wait(time.monotonic() - began)
            if lost := self.watch.lost(leases):
                self._rescue(connection, lost)
        else:
            self.watch.forget()
        health_memory.answered("rescue")

    def _rescue(self, connection: EngineConnection, leases: dict[int, float]) -> None:
        rescued = lifecycle.rescue(
            connection,
            self._delay_for,
            error=RESCUED,
            leases=leases,
            skipped_ids=self._unrescued.skipped_ids(),
            on_refused=lambda execution, error: self._unrescued.note(
                execution.execution_id, error, _statement_for(execution)
            ),
        )
        for execution, _ in rescued:
            self._unrescued.wrote([execution.execution_id], _statement_for(execution))
        unused = {execution: result for execution, result in rescued if execution.worker_has_stopped}
        results = {execution.execution_id: result for execution, result in unused.items()}
        crashed = [_crash(*row) for row in rescued if row[0] not in unused]
        self._reactions.after(connection, [*transitions_of(unused, results), *crashed])


def _statement_for(execution: OpenExecution) -> str:
    """Return the name of the statement that closes an execution. Each is judged by what it has written itself."""
    return "release" if execution.worker_has_stopped else "rescue"


def _crash(execution: OpenExecution, result: TransitionResult) -> JobTransition:
    return ended(
        execution,
        result,
        Ending.CRASHED,
        is_due=True,
        error=RESCUED,
        is_rescued=True,
        limit_key=execution.limit_key,
    )
