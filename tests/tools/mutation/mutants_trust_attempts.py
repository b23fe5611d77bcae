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
]
