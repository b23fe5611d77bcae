"""Mutants of code that calls the application, of unique keys in bulk, and of schedules' times."""

from __future__ import annotations

from .mutants import Mutant

TRUST_CALLS = [
    Mutant(
        "all owners share one quota of hanging calls",
        old="and thread.is_abandoned and thread.owner == owner",
        new="and thread.is_abandoned",
        inside="hanging_calls",
        tests=("tests/worker/test_time_limit.py",),
    ),
    Mutant(
        "the thread that fires schedules waits for each function",
        old="if not any(other.is_alive() for _, other in self._calls.values()):",
        new="if True:",
        inside="PendingCalls.ask",
        tests=("tests/worker/test_time_limit.py",),
    ),
    Mutant(
        "the result for one tick is used for another",
        old="known is not None and known_occasion != occasion",
        new="False",
        inside="PendingCalls.ask",
        tests=("tests/worker/test_time_limit.py",),
    ),
    Mutant(
        "a removed schedule's call is remembered",
        old="del self._calls[owner]",
        new="pass",
        inside="PendingCalls._abandon_forgotten",
        tests=("tests/worker/test_time_limit.py",),
    ),
    Mutant(
        "one receiver that hangs is called for ever",
        old="hanging < ABANDONED_LIMIT",
        new="True",
        inside="CallbackRunner._may_call",
        tests=("tests/worker/test_callbacks.py",),
    ),
    Mutant(
        "receivers that hang block each other",
        old=" and identity(self._receiver) == identity(receiver)",
        new="",
        inside="CallbackThread.is_calling",
        tests=("tests/worker/test_callbacks.py",),
    ),
    Mutant(
        "the methods of one object are one receiver",
        old='id(getattr(function, "__self__", None)), id(getattr(function, "__func__", function))',
        new='id(getattr(function, "__self__", None)), 0',
        inside="identity",
        tests=("tests/worker/test_callbacks.py",),
    ),
    Mutant(
        "start receivers after one that hangs are not called",
        old="            are_late = True\n",
        new="            are_late = True\n            break\n",
        inside="call_start_receivers",
        tests=("tests/process/test_worker_signals.py",),
    ),
    Mutant(
        "keys that were taken are kept while others are taken",
        old="transaction.atomic(using=connection.alias) if is_needed else nullcontext()",
        new="nullcontext()",
        inside="many_unique._savepoint",
        tests=("tests/concurrency/test_many_unique.py",),
    ),
    Mutant(
        "chunks are sorted in another order than their statements",
        old="is_separate = not unique.can_share_statement(bound.task)",
        new="is_separate = False",
        inside="Insertion._sort_by_key",
        tests=("tests/concurrency/test_many_unique.py",),
    ),
    Mutant(
        "an existing job that was found is asked for again",
        old="left = [call for call in left if (call.task.name, call.key) not in existing]",
        new="left = list(left)",
        inside="many_unique._add_or_find",
        tests=("tests/concurrency/test_many_unique.py", "tests/test_enqueue_many.py"),
    ),
    Mutant(
        "a change of the clock is not seen before the next tick",
        old="if _offset(zone, high) != offset:",
        new="if False:",
        inside="local_times._next_change",
        tests=("tests/test_expressions.py",),
    ),
    Mutant(
        "the instant of a change of the clock is no tick",
        old="change - SECOND, change",
        new="change, change",
        inside="matching_instants",
        tests=("tests/test_expressions.py",),
    ),
    Mutant(
        "a step may be longer than its field",
        old="if int(step) > count:",
        new="if False:",
        inside="expressions._check_steps",
        tests=("tests/test_expressions.py",),
    ),
]
