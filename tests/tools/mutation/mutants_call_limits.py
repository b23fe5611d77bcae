"""Mutants of the declaration of limits, of what `enqueue()` writes, and of the lists that contain jobs with a limit.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

LIMITS = "django_pgqueue/limits.py"
CALLS = "django_pgqueue/enqueue/call_limits.py"
UNIQUE = "django_pgqueue/enqueue/unique.py"
REGISTRY = "django_pgqueue/registry.py"
COPIES = "django_pgqueue/enqueue/copies.py"
BULK = "django_pgqueue/enqueue/bulk.py"
OPTIONS = "django_pgqueue/schedules/job_options.py"
QUERIES = "django_pgqueue/stats/limited_queries.py"
READY_JOBS = "django_pgqueue/job_search/ready_jobs.py"

CALL_LIMITS = [
    *of_tests(
        ("tests/test_limit_declarations.py",),
        Mutant("a weight may exceed the slots", "weight > limit.concurrency:", "False:", path=LIMITS),
        Mutant("a weight may exceed the burst", "weight > limit.burst:", "False:", path=LIMITS),
        Mutant("tasks share different limits", "other.limit.policy != limit.policy", "False", path=REGISTRY),
        Mutant("using() accepts any limit", "    if known is None:\n", "    if False:\n", path=REGISTRY),
        Mutant("a new task keeps the old limits", "    _limits = _chunk_keys = None\n", "", path=REGISTRY),
    ),
    *of_tests(
        ("tests/test_call_limits.py",),
        Mutant("the function's default is not used", "**defaults, **kwargs", "**kwargs", path=CALLS),
        Mutant("a weight is not checked", "in weight_problems(limit, weight)", "in ()", path=CALLS),
        Mutant("a key is not checked", "in key_problems(key)", "in ()", path=CALLS),
        Mutant("enqueue_many() writes no limits", " and not task.has_limit_key", "", path=BULK),
        Mutant("a copy loses its limit", "task.limit.name != name_of(job.limit_key)", "False", path=COPIES),
        Mutant("a replaced job keeps its limit", "limit_key = excluded.limit_key, ", "", "ENQUEUE_OR_REPLACE"),
        Mutant("a window's job keeps its limit", "limit_key = waiting.limit_key, ", "", "REPLACE_FOR_PERIOD"),
    ),
    *of_tests(
        ("tests/worker/test_job_options.py",),
        Mutant("a schedule's job has no limit", "    if task.has_limit_key:\n", "    if False:\n", path=OPTIONS),
        Mutant("old code fires a limited job", "if schedule.is_limited and", "if False and", path=OPTIONS),
    ),
    *of_tests(
        ("tests/stats/test_limited_jobs.py",),
        Mutant("a count that was cut is exact", ">= %(limit)s AS is_cut", "< 0 AS is_cut", path=QUERIES),
        Mutant(
            "lanes with a limit are not searched",
            "for queue_name, priority in limited_lanes(connection)]",
            "for queue_name, priority in ()]",
            path=READY_JOBS,
        ),
    ),
]
