"""Mutants of the two ends of an attempt: its start on an event loop, and what it costs if its process dies."""

from .mutants import Mutant

LOOPS = ("tests/worker/test_loops.py",)

TRUST_ATTEMPTS = [
    Mutant(
        "the task of a coroutine job is created with the loop's task factory",
        old="asyncio.Task(coroutine, loop=self.loop, context=self._context.copy())",
        new="self.loop.create_task(coroutine, context=self._context.copy())",
        inside="LoopSlots._start",
        tests=LOOPS,
    ),
    Mutant(
        "a coroutine job that cannot start is forgotten",
        old="if failed is not None:",
        new="if False:",
        inside="LoopSlots._start_waiting",
        tests=LOOPS,
    ),
    Mutant(
        "a coroutine that is cancelled before its first step is not reported",
        old="task.add_done_callback(partial(self._report_unstarted, attempt, slot))",
        new="pass",
        inside="LoopSlots._start",
        tests=LOOPS,
    ),
    Mutant(
        "a loop without running jobs is not asked",
        old="elif self.is_used or self.waiting:",
        new="elif self.running:",
        inside="LoopSlots.ask",
        tests=LOOPS,
    ),
    Mutant(
        "a loop that is blocked by a running job is abandoned",
        old="loop.unanswered > UNANSWERED_LIMIT and loop.blocking_execution() is None",
        new="loop.unanswered > UNANSWERED_LIMIT",
        inside="Loops.check",
        tests=LOOPS,
    ),
    Mutant(
        "a loop whose thread has ended is kept",
        old="if self.current.has_failed or not self.current.is_alive():",
        new="if self.current.has_failed:",
        inside="Loops.check",
        tests=LOOPS,
    ),
    Mutant(
        "an attempt whose result is not written counts as never started",
        old="has_crashed = not process.overdue and not process.expected_to_end",
        new="has_crashed = False",
        inside="_charges",
        tests=("tests/worker/test_supervision.py",),
    ),
    Mutant(
        "the end of an attempt is not recorded in the shared memory",
        old="if each.ending is not Ending.RELEASED:",
        new="if False:",
        inside="Pool.finished",
        tests=("tests/worker/test_queue_slots.py",),
    ),
    Mutant(
        "a released job is charged if its process dies before the release is written",
        old="if each.ending is not Ending.RELEASED:",
        new="if True:",
        inside="Pool.finished",
        tests=("tests/worker/test_queue_slots.py",),
    ),
    Mutant(
        "an isolated job is charged a crash of the worker process",
        old="-execution_id if self._is_elsewhere[slot] else execution_id",
        new="execution_id",
        inside="ProcessState.note_ended",
        tests=("tests/worker/test_supervision.py",),
    ),
    Mutant(
        "a report that waits for a lock is not recorded again",
        old="self._on_locked(report.claimed.execution_id for report in locked if report.ending is not Ending.RELEASED)",
        new="pass",
        inside="Completer.tick",
        tests=("tests/worker/test_completer.py",),
    ),
    Mutant(
        "a session that the server has ended is used",
        old="if may_replace() and has_ended(connection):",
        new="if False:",
        inside="check_before_use",
        tests=("tests/worker/test_ended_sessions.py",),
    ),
    Mutant(
        "a session that a job relies on is replaced in silence",
        old="if was_checked or self.is_dirty",
        new="if self.is_dirty",
        inside="Watched._may_be_replaced",
        tests=("tests/worker/test_ended_sessions.py",),
    ),
    Mutant(
        "the session of the ORM's thread is checked once only",
        old="self.is_checked = self.is_of_slot",
        new="self.is_checked = True",
        inside="Watched._may_be_replaced",
        tests=("tests/worker/test_ended_sessions.py",),
    ),
]
