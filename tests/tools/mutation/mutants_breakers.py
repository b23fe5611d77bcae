"""Mutants of circuit breakers: when they open, which executions decide, and what happens to an operator's pause.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

BREAKERS = of_tests(
    ("tests/concurrency/test_breakers.py",),
    Mutant(
        "an open breaker lets all jobs start", "Override(concurrency=1)", "Override()", inside="limit_policies.PROBING"
    ),
    Mutant(
        "claims trust an old scan about breakers",
        "[key for key in limit_keys if limits.name_of(key) in breakers]",
        "[]",
        inside="KeyClaims._controls_of",
    ),
    Mutant("few attempts open a breaker", "counted.ended >= given.attempts AND ", "", file="sql/breakers.py"),
    Mutant(
        "a share of exactly the threshold opens nothing",
        "failed >= given.share",
        "failed > given.share",
        "FAILING_KEYS",
    ),
    Mutant(
        "all counts are in the window",
        "make_interval(secs => given.window_seconds)",
        "make_interval(secs => 9e6)",
        file="sql/breakers.py",
    ),
    Mutant(
        "jobs from before the opening decide about a success",
        "WHERE given.probe_id > CASE",
        "WHERE given.probe_id > 0 * CASE",
        "CLOSE_BREAKERS",
    ),
    Mutant(
        "jobs from before the opening decide about a failure",
        "ELSE given.probe_id > CASE",
        "ELSE given.probe_id > 0 * CASE",
        "OPEN_BREAKERS",
    ),
    Mutant(
        "a breaker replaces the pause of an operator",
        "    WHERE pgqueue_pause.paused_by = excluded.paused_by OR pgqueue_pause.paused_until <= excluded.paused_at\n",
        "",
        "OPEN_BREAKERS",
    ),
    Mutant("a closed breaker ends the pause of an operator", " AND paused_by = %(paused_by)s", "", "CLOSE_BREAKERS"),
    Mutant(
        "counts stay after the opening",
        "DELETE FROM pgqueue_breaker_count WHERE",
        "DELETE FROM pgqueue_breaker_count WHERE false AND",
        "OPEN_BREAKERS",
    ),
    Mutant("attempts of an open breaker count", "WHERE breaker.is_open IS NULL", "", "ADD_BREAKER_COUNTS"),
    Mutant(
        "breakers open without the lock of their key",
        "set(limits.lock_keys(connection, sorted(keys)))",
        "keys",
        inside="BreakerCounter._decide",
    ),
    Mutant(
        "completions wait for operators",
        "breakers.limit_waits(connection)",
        "pass",
        inside="BreakerCounter._decide",
    ),
    Mutant(
        "a probe does not wait for the lock of its key",
        "while any(_has_probe",
        "while False and any(_has_probe",
        inside="BreakerCounter._decide_probes",
    ),
    Mutant("the end of a probe waits for a second", "0.0 if is_probe else", "", inside="BreakerCounter._add"),
    Mutant(
        "a slot is free before its probe has decided",
        "                self._breakers.write(connection)\n        self._on_written(ready)\n",
        "                self._on_written(ready)\n                self._breakers.write(connection)\n",
        inside="Completer.tick",
    ),
    Mutant(
        "a stop loses the counts of breakers",
        "self._breakers.write_last(connection)",
        "self._breakers.write(connection)",
        inside="Completer.at_end",
    ),
    Mutant(
        "crashes do not count",
        "frozenset({Ending.FAILED, Ending.CRASHED})",
        "{Ending.FAILED}",
        inside="breaker_counter.FAILURES",
    ),
    Mutant(
        "the task's own choices are failures",
        "Directive not in found.__mro__ and",
        "True and",
        inside="Breaker.counts",
    ),
)
