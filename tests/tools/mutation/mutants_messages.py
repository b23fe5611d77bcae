"""Mutants of what commands ask and say: consent, reasons of changes, printed failures, and the proposals of names.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

MESSAGES = [
    *of_tests(
        ("tests/management/test_consent.py",),
        Mutant(
            "a command changes many jobs without a question",
            '    ask(f"{change.capitalize()} {preview}?", options)\n',
            "",
            inside="is_agreed",
        ),
        Mutant(
            "a preview that was cut is exact",
            "is_exact=next(names, None) is None",
            "is_exact=True",
            inside="JobPreview.of_tasks",
        ),
    ),
    *of_tests(
        ("tests/test_change_results.py",),
        Mutant(
            "a stale job has no reason of its own",
            '(seen.state, getattr(seen, instant)) != (row["state"], row[instant])',
            "False",
            inside="_has_changed",
        ),
    ),
    *of_tests(
        ("tests/worker/test_log.py",),
        Mutant(
            "frames of the worker are printed",
            'is_own = not line.startswith(f"{FRAME}{PACKAGE}")',
            "is_own = True",
            inside="own_frames",
        ),
        Mutant(
            "a failure is printed twice",
            "elif _is_printed_by_handler(level):",
            "elif False:",
            inside="_print_failures_once",
        ),
    ),
]
