"""Mutants of what operators see of batches, steps, workflows and times: counts, acts, timelines, graphs and reasons.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

SEEN = [
    *of_tests(
        ("tests/admin/test_batches.py",),
        Mutant(
            "a count of a batch has no limit",
            "LIMIT %(limit)s::bigint\n        ) AS first",
            ") AS first",
            inside="COUNTS_OF_BATCHES",
        ),
        Mutant(
            "counts leave out removed jobs",
            "FROM pgqueue_batch_removal\n        WHERE batch_id = node.id",
            "FROM pgqueue_batch_removal\n        WHERE false",
            inside="COUNTS_OF_BATCHES",
        ),
        Mutant(
            "counts leave out nested batches",
            "AS child\n),\nnode AS MATERIALIZED (\n    SELECT root_id",
            "AS child WHERE false\n),\nnode AS MATERIALIZED (\n    SELECT root_id",
            inside="COUNTS_OF_BATCHES",
        ),
        Mutant(
            "a workflow is blocked while a job runs",
            " and not self.running.value)",
            ")",
            inside="BatchCounts.is_blocked",
        ),
        Mutant("a cut count looks exact", "Count(count, not is_cut)", "Count(count)", inside="batch_counts"),
        Mutant(
            "anybody closes a batch",
            '("pgqueue.view_jobbatch", "pgqueue.close_batch")',
            '("pgqueue.view_jobbatch",)',
            inside="acts.CLOSE_BATCH",
        ),
        Mutant(
            "a batch is closed twice",
            "    if not close_batch(",
            "    if None is close_batch(",
            inside="batches.acts._close",
        ),
        Mutant(
            "anybody retries the jobs of a batch",
            "    if not may_act(request, action):",
            "    if False:",
            inside="jobs_view",
        ),
        Mutant(
            "a retry takes all jobs",
            "RETRY: (State.DEAD.value,)",
            "RETRY: (State.DEAD.value, State.SUCCEEDED.value)",
            inside="batches.acts.WORDS",
        ),
        Mutant(
            "the callback's arguments are shown to anybody",
            "may_view_arguments=private.may_view(request)",
            "may_view_arguments=True",
            inside="_callbacks",
        ),
        Mutant("any job of the task is the callback", "filter(digest=digest)", "all()", inside="batches.page._job_of"),
        Mutant(
            "failed batches are those that have succeeded too",
            '"succeeded_at__isnull": True, ',
            "",
            inside="batch_states.CONDITIONS",
        ),
        Mutant(
            "the list of a batch ignores its state",
            "if not filters.words or any(",
            "if True or any(",
            inside="find_in_batch",
        ),
        Mutant(
            "the list of a batch ignores conditions",
            "matching(filters, conditions[state]",
            "matching(filters, Q()",
            inside="find_in_batch",
        ),
    ),
    *of_tests(
        ("tests/admin/test_step_timeline.py",),
        Mutant(
            "a sleep has no end",
            "_span(SLEPT, step.started_at, step.wake_at, until)",
            "_span(SLEPT, step.started_at, None, until)",
            inside="_step",
        ),
        Mutant("a short step is invisible", "max(end - x, SMALLEST)", "end - x", inside="_bars"),
        Mutant("a running job shows nothing", "if job.state != State.RUNNING or", "if True or", inside="_now"),
        Mutant("the first steps are shown", "steps[-ROWS:]", "steps[:ROWS]", inside="step_timeline"),
    ),
    *of_tests(
        ("tests/steps/test_figures.py",),
        Mutant("a cancelled job is suspended", "AND state = 'ready' LIMIT 1", "LIMIT 1", inside="SUSPENDED_JOBS"),
        Mutant(
            "a sleep that is over suspends",
            "AND wake_at > statement_timestamp() + %(time_shift)s::interval",
            "",
            inside="SUSPENDED_JOBS",
        ),
        Mutant("a received event is counted", ") IS NULL\n", ") IS NULL OR true\n", inside="UNRECEIVED_EVENTS"),
        Mutant("an open batch runs", "FILTER (WHERE closed_at IS NOT NULL)", "", inside="BATCHES_BY_STATE"),
    ),
    *of_tests(
        ("tests/graphs/test_shown.py",),
        Mutant("a graph is read without a bound", "len(rows) > NODES_READ", "False", inside="workflow_graph"),
        Mutant(
            "edges are read without a bound",
            "is_cut = len(edges) > EDGES_READ",
            "is_cut = False",
            inside="workflow_graph",
        ),
        Mutant(
            "a job stands beside its dependency", "found[node] = 1 + max(", "found[node] = max(", inside="layers_of"
        ),
        Mutant("many alike jobs have a box each", "if len(nodes) > most_alike", "if False", inside="grouped"),
        Mutant(
            "an edge from a failed job looks plain",
            '"failed" if failed and edge.policy != "ignore" else edge.policy',
            "edge.policy",
            inside="merged",
        ),
        Mutant("a long edge crosses boxes", "if has_passages else ()", "if False else ()", inside="_chains"),
        Mutant("a long chain is drawn", "or groups[-1].layer >= MOST_LAYERS", "", inside="drawing"),
        Mutant(
            "the jobs of a graph are linked for anybody",
            "if permission is not None and not request.user.has_perm(permission):",
            "if False:",
            inside="navigation.allowed_url",
        ),
        Mutant(
            "a blocked job is not explained", "    if blocking:", "    if False:", inside="graphs.explanation._waiting"
        ),
        Mutant(
            "an ignored failure explains",
            "and group.policy != FailurePolicy.IGNORE",
            "",
            inside="graphs.explanation._waiting",
        ),
        Mutant(
            "a cancelled job names any dependency",
            "if group.has_cancelled",
            "if True",
            inside="graphs.explanation._cancelled",
        ),
        Mutant("jobs of no workflow are nodes", "if in_graph)", "if True)", inside="workflow_graph"),
    ),
]
TIMES = [
    Mutant(
        "a page shows times in UTC",
        "timezone.localtime(at) if timezone.is_aware(at) else at",
        "at",
        inside="full_date",
        tests=("tests/admin/test_every_page.py",),
    ),
    Mutant(
        "the reason of a job has times in UTC",
        ", time_text=full_date",
        "",
        inside="story._why",
        tests=("tests/admin/test_job_story.py",),
    ),
    Mutant(
        "the audit shows ends of overrides as ISO 8601",
        "is_time=name in TIMES",
        "is_time=False",
        inside="bulk_acts._shown",
        tests=("tests/admin/test_bulk_acts.py",),
    ),
    Mutant(
        "the next runs are not in the zone of the page",
        "moment(at)",
        'moment(at, f"{at:%F %T}")',
        inside="_tick",
        tests=("tests/admin/test_next_ticks.py",),
    ),
    Mutant(
        "log lines have times in UTC",
        "full_date(line.at)",
        "line.at:%F %T",
        inside="kept_logs._shown_line",
        tests=("tests/admin/test_kept_logs.py",),
    ),
    Mutant(
        "an explainer writes times in UTC for every caller",
        "self.time_text = time_text",
        "from .sentences import utc_text\n\n        self.time_text = utc_text",
        inside="ExplainedJob",
        tests=("tests/stats/test_explanation.py",),
    ),
    *of_tests(
        ("tests/admin/test_without_time_zones.py",),
        Mutant("the pages name no time zone", "Times in {{ zone }}", "", file="navigation.html"),
        Mutant(
            "a history has times of another form",
            "action.action_time|pgqueue_moment",
            'action.action_time|date:"DATETIME_FORMAT"',
            file="admin/history.html",
        ),
    ),
]
