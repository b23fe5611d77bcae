"""Mutants of the figures of limits and of their keys, and of what a job with a limit waits for.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

WAITS = "django_pgqueue/stats/limit_waits.py"
FIGURES = "django_pgqueue/stats/limit_figures.py"
KEYS = "django_pgqueue/stats/key_figures.py"
KEY_QUERIES = "django_pgqueue/stats/key_queries.py"
QUERIES = "django_pgqueue/stats/limit_queries.py"
RANGES = "django_pgqueue/stats/limit_ranges.py"
CONTROLS = "django_pgqueue/stats/limit_controls.py"
EXPLANATION = "django_pgqueue/stats/limit_explanation.py"
GAUGES = "django_pgqueue/metrics/gauges.py"
FILTERS = "django_pgqueue/models/job_filters.py"

LIMIT_STATS = [
    *of_tests(
        ("tests/stats/test_limits.py",),
        Mutant(
            "a job that does not fit has a slot",
            "state.running_weight + min(job.weight, slots) >",
            "state.running_weight >",
            path=WAITS,
        ),
        Mutant(
            "a heavy job needs one token",
            "(min(weight, policy.burst) - policy.burst)",
            "(1 - policy.burst)",
            path=WAITS,
        ),
        Mutant("a bucket is always full", "min(max(state.full_seconds or 0.0, 0.0)", "min(0.0", path=WAITS),
        Mutant("a dead job is any job", "LimitWaitReason.BLOCKED_BY_DEAD if is_dead else", "", path=WAITS),
        Mutant("a retry is not the next job", "policy.is_ordered and state.head_id is not None", "False", path=WAITS),
        Mutant("the time that ends first counts", "last = max(times", "last = min(times", path=WAITS),
        Mutant("a pause is not seen", "    if pause is not None:\n", "    if False:\n", path=WAITS),
        Mutant("a range ends within its keys", 'f"{name};") if has_value', 'f"{name}:z") if has_value', path=RANGES),
        Mutant("a page begins with the last key", 'return f"{limit_key}\\x01"', "return limit_key", path=RANGES),
        Mutant("a limit ends at its bare name", "|| ';'\n", "|| '~'\n", path=QUERIES),
        Mutant("a page ends early", "limit=count + 1)", "limit=count)", path=KEYS),
        Mutant("a page has no key that only runs", "*(key for [key] in running)", "", path=KEYS),
        Mutant("a later job comes first", "return is_later, ", "return False, ", path=KEYS),
        Mutant("a figure has the shortest hold", "ORDER BY held_until DESC", "ORDER BY held_until", path=KEY_QUERIES),
        Mutant("ended holds count", "for key, is_held in rows if is_held", "for key, is_held in rows", path=FIGURES),
        Mutant("a count that was cut is exact", "of_limit.jobs_are_cut |= due + later > limit", "pass", path=FIGURES),
        Mutant("keys that were cut are all", "of_limit.keys_are_cut |= visits", "visits", path=FIGURES),
        Mutant(
            "the name's override comes first",
            "for each in (limit_key, name))",
            "for each in (name, limit_key))",
            path=CONTROLS,
        ),
        Mutant(
            "the pause of a key hides its limit's",
            "(limit_key, name_of(limit_key)) if name",
            "(limit_key,) if name",
            path=CONTROLS,
        ),
    ),
    *of_tests(
        ("tests/stats/test_limit_explanation.py",),
        Mutant("a job waits as the first of its key", "row.limit_weight))", "1))", path=EXPLANATION),
        Mutant("later jobs are ahead", "AND (run_after, id) < (", "AND (run_after, id) > (", path=KEY_QUERIES),
        Mutant("an order counts later jobs", "AND id < %(job_id)s", "AND id <> %(job_id)s", path=KEY_QUERIES),
        Mutant("no name is similar", "get_close_matches(name, registry.limits(), n=1)", "[]", path=EXPLANATION),
    ),
    *of_tests(
        ("tests/stats/test_limited_jobs.py",),
        Mutant(
            "a count repeats each half", "for is_null in (True, False)]", "for is_null in (True, True)]", path=FILTERS
        ),
        Mutant("groups are counted in halves", " or query.distinct or query.group_by is not None", "", path=FILTERS),
        Mutant(
            "a filter forgets the halves", "clone._is_in_two_indexes = self._is_in_two_indexes", "pass", path=FILTERS
        ),
    ),
    *of_tests(
        ("tests/metrics/test_gauges.py",),
        Mutant("any name has a series", "has_label = limit.is_declared and", "has_label =", path=GAUGES),
        Mutant(
            "waits are added up",
            "limit.oldest_due_seconds or 0.0, max)",
            "limit.oldest_due_seconds or 0.0)",
            path=GAUGES,
        ),
    ),
    *of_tests(
        ("tests/doctor/test_worker_checks.py",),
        Mutant(
            "any due job is reported",
            "if limit.due.value}",
            "}",
            path="django_pgqueue/doctor/limit_checks.py",
        ),
    ),
]
