"""Mutants of the tables in which a capability registers what other code does for it.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

ROWS = of_tests(
    ("tests/worker/test_orphans.py",),
    Mutant(
        "no sweep removes the steps of deleted jobs",
        '    "steps": Orphans("the steps of job", sql.steps.PRUNE_STEPS),\n',
        "",
        inside="ORPHANS",
    ),
)
EXPORTER = of_tests(
    ("tests/metrics/test_prometheus.py",),
    Mutant(
        "buckets are not added up",
        "list(accumulate(histogram.counts))",
        "list(histogram.counts)",
        inside="_histogram_lines",
    ),
    Mutant("a quotation mark ends a label", """'"': r"\\"", """, "", inside="prometheus.ESCAPES"),
    Mutant("two threads read at a time", "        with self._lock:\n", "        if True:\n", inside="Fresh.get"),
)
VIEW = of_tests(
    ("tests/metrics/test_gauges.py",),
    Mutant(
        "two first requests read twice",
        "figures.setdefault(alias, Fresh(",
        "{}.setdefault(alias, Fresh(",
        inside="figures_of",
    ),
)
DUTIES = of_tests(
    ("tests/worker/test_duties.py",),
    Mutant("no duty of a capability runs", "in DUTIES", "in DUTIES[:0]", inside="Maintenance._duties"),
    Mutant("each page of a walk is the first", "self._after_id = last_id or 0", "pass", inside="Walk.run"),
    Mutant("a full removal ends the duty", "bool(remove(connection))", "bool(0)", inside="on_connection"),
)

DOCTOR = of_tests(
    ("tests/doctor/test_server_checks.py",),
    Mutant("the doctor asks for no table to view", "if purpose in VIEWING", "if not purpose", inside="needed_for"),
)

EXPLAINERS = of_tests(
    ("tests/stats/test_explanation.py", "tests/stats/test_limit_explanation.py", "tests/graphs/test_shown.py"),
    Mutant("why() knows no workflows", "*(reason_of_graph, _of_row", "*(_of_row", inside="EXPLAINERS"),
    Mutant("workers come before pauses", "_of_pauses, _of_workers", "_of_workers, _of_pauses", inside="EXPLAINERS"),
    Mutant("why() knows no limits", "reason_of_limit, ", "", inside="EXPLAINERS"),
)

IN_HEADERS = of_tests(
    ("tests/test_options.py",),
    Mutant("no header carries an option", "if options.IN_HEADERS:", "if False:", inside="new_job.row_of"),
    Mutant("a header carries None", "is not None}", "is not task}", inside="headers_of_options"),
)

REGISTRATION = [*ROWS, *EXPORTER, *VIEW, *DUTIES, *DOCTOR, *EXPLAINERS, *IN_HEADERS]
