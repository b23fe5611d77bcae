"""Mutants of the declaration of limits, of what `enqueue()` writes, and of the lists that contain jobs with a limit.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

CALL_LIMITS = [
    *of_tests(
        ("tests/test_limit_declarations.py",),
        Mutant("a weight may exceed the slots", "weight > limit.concurrency:", "False:", inside="weight_problems"),
        Mutant("a weight may exceed the burst", "weight > limit.burst:", "False:", inside="weight_problems"),
        Mutant(
            "tasks share different limits", "other.limit.policy != limit.policy", "False", inside="_check_same_policy"
        ),
        Mutant(
            "using() accepts any limit", "    if known is None:\n", "    if False:\n", inside="registry.check_limit"
        ),
        Mutant("a new task keeps the old limits", "    _limits = _chunk_keys = None\n", "", inside="registry.register"),
    ),
    *of_tests(
        ("tests/test_call_limits.py",),
        Mutant("the function's default is not used", "{**defaults, **_by_name", "{**_by_name", inside="_filled"),
        Mutant("a weight is not checked", "in weight_problems(limit, weight)", "in ()", inside="_weight_of"),
        Mutant("a key is not checked", "in key_problems(key)", "in ()", inside="_limit_key_of"),
        Mutant(
            "enqueue_many() writes no limits",
            "self.has_limit_key or self.unique_key",
            "self.unique_key",
            inside="TaskDefinition.__post_init__",
        ),
        Mutant(
            "a copy loses its limit",
            "task.limit.name != name_of(job.limit_key)",
            "False",
            inside="_keeps_limit",
        ),
        Mutant("a replaced job keeps its limit", "limit_key = excluded.limit_key, ", "", "ENQUEUE_OR_REPLACE"),
        Mutant("a window's job keeps its limit", "limit_key = waiting.limit_key, ", "", "REPLACE_FOR_PERIOD"),
    ),
    *of_tests(
        ("tests/worker/test_job_options.py",),
        Mutant(
            "a schedule's job has no limit",
            "call_project=self._named)",
            "call_project=self._named)._replace(limit=None)",
            inside="_ProjectCode.__call__",
        ),
        Mutant("old code fires a limited job", "if schedule.is_limited and", "if False and", inside="_check_code"),
    ),
    *of_tests(
        ("tests/stats/test_limited_jobs.py",),
        Mutant("a count that was cut is exact", ">= bound.jobs AS is_cut", "< 0 AS is_cut", inside="READY_LIMITED"),
        Mutant(
            "lanes with a limit are not searched",
            "limited = limited_lanes(connection)",
            "limited: list[tuple[str, int]] = []",
            inside="find_ready",
        ),
    ),
]
