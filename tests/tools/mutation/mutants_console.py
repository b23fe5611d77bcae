"""Mutants of the console: its ready groups, its charts and its navigation.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

READY_GROUPS = of_tests(
    ("tests/management/test_permissions_command.py",),
    Mutant(
        "operators may enqueue any task",
        " | needed - LEFT_OUT.keys()",
        " | needed",
        inside="operators",
    ),
    Mutant(
        "support views arguments",
        "frozenset(found)",
        'frozenset(found | {"view_arguments"})',
        inside="support",
    ),
    Mutant(
        "a permission added by hand is taken away",
        "group.permissions.add(*(permissions[codename] for codename in lacking))",
        "group.permissions.set([permissions[codename] for codename in ready.codenames])",
        inside="_create",
    ),
    Mutant("a dry run makes the groups", "    if not dry_run:\n", "    if True:\n", inside="_create"),
)

CONSOLE = [*READY_GROUPS]
