"""Mutants of the admin's pages of limits, and of the search for jobs by limit key.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

LIMIT_PAGES = [
    *of_tests(
        ("tests/admin/test_open_breakers.py",),
        Mutant(
            "a page shows the declared slots of a key while its breaker probes it",
            "policy_in_force(limit_key, overrides, is_probing=opened is not None)",
            "policy_in_force(limit_key, overrides)",
            inside="_controls",
        ),
        Mutant(
            "an open breaker that the code has no more takes slots in the statistics",
            "return declared is not None and declared.breaker is not None and limit_key in self.open_breakers",
            "return declared is not None and limit_key in self.open_breakers",
            inside="Controls.has_open_breaker",
        ),
    ),
    *of_tests(
        ("tests/admin/test_limit_acts.py",),
        Mutant(
            "a button does not compare the pause of a limit",
            "None if pause is None else pause.paused_at",
            "None",
            inside="buttons._pause_of",
        ),
        Mutant(
            "a button undoes another change than shown",
            "return override, None if override is None else override.changed_at",
            "return override, shown._moment(target.posted('shown_change'))",
            inside="buttons._override_of",
        ),
        Mutant(
            "a button ends a longer hold than shown",
            "return longest, longest",
            "return longest, shown._moment(target.posted('shown_hold'))",
            inside="buttons._hold_of",
        ),
        Mutant(
            "a form overwrites a change that it has not shown",
            "if request.POST.get(SHOWN_FIELD) != str(",
            "if False and (",
            inside="limits.form._change",
        ),
        Mutant(
            "a form stores the values of the code",
            "None if value == getattr(self.inherited, name) else value",
            "value",
            inside="LimitForm.values",
        ),
        Mutant(
            "a change of a limit needs no permission",
            "act_view(site, acts.OVERRIDE_LIMIT, partial(",
            "act_view(site, None, partial(",
            inside="form_url",
        ),
        Mutant(
            "an act on a limit needs no permission",
            '(VIEW_JOB, "pgqueue.change_limits")',
            "(VIEW_JOB,)",
            inside="acts.LIMITS",
        ),
    ),
    *of_tests(
        ("tests/admin/test_blocked_keys.py",),
        Mutant(
            "the first job of a key blocks it in any state", "and first.state == State.DEAD", "", inside="blocker_of"
        ),
        Mutant("each dead job blocks its key", "or job.limit_order != BLOCKS", "", inside="blocked_by"),
    ),
    *of_tests(
        ("tests/admin/test_limit_filter.py",),
        Mutant(
            "a search by limit finds names that begin alike",
            'f"{limit_key};")',
            'f"{limit_key}~")',
            inside="keys_of_limit",
        ),
        Mutant(
            "a search by limit leaves out old waiting jobs",
            "(UNFINISHED if filters.limit else ())",
            "()",
            inside="_sources",
        ),
    ),
]
