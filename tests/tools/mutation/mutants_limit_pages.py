"""Mutants of the admin's pages of limits, and of the search for jobs by limit key.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

LIMIT_PAGES = [
    *of_tests(
        ("tests/admin/test_open_breakers.py",),
        Mutant(
            "a page shows the declared slots of a key while its breaker probes it",
            "policy_in_force(limit_key, overrides, is_probing=is_open)",
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
            "a button acts on another pause of a limit than shown",
            "if request.POST.get(PAUSE_FIELD) == str(",
            "if True or request.POST.get(PAUSE_FIELD) == str(",
            inside="limit_actions._is_as_shown",
        ),
        Mutant(
            "a button undoes another change than shown",
            "or request.POST.get(CHANGE_FIELD) != str(",
            "or False and str(",
            inside="_restore",
        ),
        Mutant(
            "a button ends a longer hold than shown",
            "or request.POST.get(HOLD_FIELD) != str(",
            "or False and str(",
            inside="_end_hold",
        ),
        Mutant(
            "a form overwrites a change that it has not shown",
            "if request.POST.get(SHOWN_FIELD) != str(",
            "if False and (",
            inside="limit_form._change",
        ),
        Mutant(
            "a form stores the values of the code",
            "None if value == getattr(self.inherited, name) else value",
            "value",
            inside="LimitForm.values",
        ),
        Mutant(
            "a change of a limit needs no permission",
            '["pgqueue.view_job", PERMISSION]',
            '["pgqueue.view_job"]',
            inside="change_view",
        ),
        Mutant(
            "an act on a limit needs no permission",
            '["pgqueue.view_job", permission]',
            '["pgqueue.view_job"]',
            inside="limit_actions._view",
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
