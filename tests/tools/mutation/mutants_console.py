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

CHARTS = of_tests(
    ("tests/admin/test_charts.py",),
    Mutant("ticks are at round times of UTC", "timezone.localtime(at) if", "at if", inside="chart_ticks._local"),
    Mutant("ticks have any distance", " if _is_round(at, step)]", "]", inside="chart_ticks.ticks"),
    Mutant("labels leave the chart", '"start" if x < EDGE else ', "", inside="charts._anchor"),
)
COLUMNS = of_tests(
    ("tests/admin/test_lists.py", "tests/admin/test_limits.py", "tests/admin/test_queues.py"),
    Mutant(
        "a list keeps a column of zeros",
        "if name not in dropped]",
        "]",
        inside="DatabaseChangeList.drop_columns_of_zeros",
    ),
    Mutant("the limits keep columns of zeros", "if place < 2 or ", "if True or ", inside="limits._without_zeros"),
)
SIDEBAR = of_tests(
    ("tests/admin/test_sidebar.py",),
    Mutant("every page below jobs marks the list of jobs", 'else f"{url}?"', "else url", inside="_never_current"),
    Mutant(
        "an old reading is shown as a count",
        "return facts if time.monotonic() - began_at <= SHOWN_SECONDS else None",
        "return facts",
        inside="current.latest",
    ),
    Mutant("breadcrumbs name a page twice", " if label != following]", "]", inside="navigation._path"),
)
JOB_PAGE = of_tests(
    ("tests/admin/test_job_story.py",),
    Mutant("a dead job counts itself", " & ~Q(pk=job.pk)", "", inside="links.alike"),
    Mutant("all dead jobs of the task died alike", ", latest_error=error)", ")", inside="links.alike"),
    Mutant("frames that repeat once are folded", "if times > REPEATS:", "if times > 1:", inside="_repeated"),
)
CONSOLE = [*READY_GROUPS, *CHARTS, *COLUMNS, *SIDEBAR, *JOB_PAGE]
