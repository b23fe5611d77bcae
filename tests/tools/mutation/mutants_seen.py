"""Mutants of what operators see of batches, steps and workflows: counts, acts, the timeline, the graph and reasons.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

ACTS = "django_pgqueue/admin/batch_acts.py"
BATCHES = "django_pgqueue/models/batch_states.py"
COUNTS = "django_pgqueue/stats/batch_counts.py"
EXPLANATION = "django_pgqueue/stats/graph_explanation.py"
FOUND = "django_pgqueue/job_search/batch_jobs.py"
GRAPHS = "django_pgqueue/stats/graphs.py"
GROUPS = "django_pgqueue/stats/graph_groups.py"
LAYOUT = "django_pgqueue/admin/graph_layout.py"
PAGE = "django_pgqueue/admin/batch_page.py"
DRAWN = "django_pgqueue/admin/workflow_graph.py"
QUERIES = "django_pgqueue/stats/graph_queries.py"
SUSPENDED = "django_pgqueue/stats/suspended.py"
TIMELINE = "django_pgqueue/admin/step_timeline.py"

SEEN = [
    *of_tests(
        ("tests/admin/test_batches.py",),
        Mutant(
            "a count of a batch has no limit",
            "LIMIT %(limit)s::bigint + 1\n        ) AS first",
            ") AS first",
            path=COUNTS,
        ),
        Mutant(
            "counts leave out removed jobs",
            "FROM pgqueue_batch_removal\n        WHERE batch_id = node.id",
            "FROM pgqueue_batch_removal\n        WHERE false",
            path=COUNTS,
        ),
        Mutant(
            "counts leave out nested batches",
            "AS child\n),\nnode AS MATERIALIZED (\n    SELECT root_id",
            "AS child WHERE false\n),\nnode AS MATERIALIZED (\n    SELECT root_id",
            path=COUNTS,
        ),
        Mutant("a workflow is blocked while a job runs", " and not self.running.value)", ")", path=COUNTS),
        Mutant("a cut count looks exact", "Count(count, not is_cut)", "Count(count)", path=COUNTS),
        Mutant(
            "anybody closes a batch",
            "return request.user.has_perms([VIEW, CLOSE])",
            "return request.user.has_perms([VIEW])",
            path=ACTS,
        ),
        Mutant("a batch is closed twice", "    if not was_open:", "    if False:", path=ACTS),
        Mutant(
            "anybody retries the jobs of a batch",
            "        if not may_act(request, action):\n            raise PermissionDenied",
            "        pass",
            path=ACTS,
        ),
        Mutant(
            "a retry takes all jobs",
            "RETRY: (State.DEAD.value,)",
            "RETRY: (State.DEAD.value, State.SUCCEEDED.value)",
            path=ACTS,
        ),
        Mutant(
            "the callback's arguments are shown to anybody",
            "may_view_arguments=private.may_view(request)",
            "may_view_arguments=True",
            path=PAGE,
        ),
        Mutant("any job of the task is the callback", "filter(digest=digest)", "all()", path=PAGE),
        Mutant("failed batches are those that have succeeded too", '"succeeded_at__isnull": True, ', "", path=BATCHES),
        Mutant(
            "the list of a batch ignores its state",
            "if not filters.words or any(",
            "if True or any(",
            path=FOUND,
        ),
        Mutant(
            "the list of a batch ignores conditions",
            "_matching(filters, conditions[state]",
            "_matching(filters, Q()",
            path=FOUND,
        ),
    ),
    *of_tests(
        ("tests/admin/test_step_timeline.py",),
        Mutant(
            "a sleep has no end",
            "_span(SLEPT, step.started_at, step.wake_at, until)",
            "_span(SLEPT, step.started_at, None, until)",
            path=TIMELINE,
        ),
        Mutant("a short step is invisible", "max(end - x, SMALLEST)", "end - x", path=TIMELINE),
        Mutant("a running job shows nothing", "if job.state != State.RUNNING or", "if True or", path=TIMELINE),
        Mutant("the first steps are shown", "steps[-ROWS:]", "steps[:ROWS]", path=TIMELINE),
    ),
    *of_tests(
        ("tests/steps/test_figures.py",),
        Mutant("a cancelled job is suspended", "AND state = 'ready' LIMIT 1", "LIMIT 1", path=SUSPENDED),
        Mutant(
            "a sleep that is over suspends",
            "AND wake_at > statement_timestamp() + %(time_shift)s::interval",
            "",
            path=SUSPENDED,
        ),
        Mutant("a received event is counted", ") IS NULL\n", ") IS NULL OR true\n", path=SUSPENDED),
        Mutant("an open batch runs", "FILTER (WHERE closed_at IS NOT NULL)", "", path=SUSPENDED),
    ),
    *of_tests(
        ("tests/graphs/test_shown.py",),
        Mutant("a graph is read without a bound", "len(rows) > NODES_READ", "False", path=GRAPHS),
        Mutant("edges are read without a bound", "is_cut = len(edges) > EDGES_READ", "is_cut = False", path=GRAPHS),
        Mutant("a job stands beside its dependency", "found[node] = 1 + max(", "found[node] = max(", path=GROUPS),
        Mutant("many alike jobs have a box each", "if len(nodes) > most_alike", "if False", path=GROUPS),
        Mutant(
            "an edge from a failed job looks plain",
            '"failed" if failed and edge.policy != "ignore" else edge.policy',
            "edge.policy",
            path=GROUPS,
        ),
        Mutant("a long edge crosses boxes", "if has_passages else ()", "if False else ()", path=LAYOUT),
        Mutant("a long chain is drawn", "or groups[-1].layer >= MOST_LAYERS", "", path=DRAWN),
        Mutant(
            "the jobs of a graph are linked for anybody",
            'if not request.user.has_perm("pgqueue.view_job"):',
            "if False:",
            path=DRAWN,
        ),
        Mutant("a blocked job is not explained", "    if blocking:", "    if False:", path=EXPLANATION),
        Mutant("an ignored failure explains", "and group.policy != FailurePolicy.IGNORE", "", path=EXPLANATION),
        Mutant("a cancelled job names any dependency", "if group.has_cancelled", "if True", path=EXPLANATION),
        Mutant("jobs of no workflow are nodes", "if in_graph)", "if True)", path=GRAPHS),
    ),
]
