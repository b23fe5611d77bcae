"""Mutants of the list of causes: which jobs count, what is urgent, who sees limit keys, and how old a reading may be.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

CAUSES = [
    *of_tests(
        ("tests/stats/test_causes.py",),
        Mutant("a pause without jobs is a cause", " and queue.paused.value:", ":", inside="waiting_jobs.paused_queues"),
        Mutant(
            "jobs of a paused queue count for their task too",
            " and row.queue_name not in reading.pauses.of_queues",
            "",
            inside="facts._paused",
        ),
        Mutant(
            "each queue has no worker",
            "if unserved and not facts.live_workers:",
            "if False:",
            inside="waiting_jobs.unserved_queues",
        ),
        Mutant(
            "busy slots are a cause at once",
            "waited_seconds >= BUSY_SECONDS",
            "True",
            inside="waiting_jobs.busy_queues",
        ),
        Mutant(
            "a full limit is a cause at once",
            "if kind not in SLOW or max(",
            "if True or max(",
            inside="limited_jobs.held_jobs",
        ),
        Mutant("a breaker is a pause", "if is_of_breaker or (", "if False or (", inside="limited_jobs._kind"),
        Mutant(
            "a breaker that probes is a full limit",
            "key.wait.breaker and",
            "False and",
            inside="limited_jobs._kind",
        ),
        Mutant(
            "keys are named to everybody",
            "self.with_keys or not has_value(key)",
            "True",
            inside="Words.key_of",
        ),
        Mutant("an only key has nearly all jobs", "len(keys) == 1 or", "", inside="single_keys"),
        Mutant(
            "half of the jobs are nearly all",
            "SHARE_OF_ONE_KEY * total",
            "0.5 * total",
            inside="single_keys",
        ),
        Mutant("a few jobs are many", "max(LEAST_OF_ONE_KEY, ", "max(1, ", inside="single_keys"),
        Mutant(
            "the key of a running job is ordered by nobody",
            "if policy.is_ordered:",
            "if False:",
            inside="ready._reason",
        ),
        Mutant("pauses of keys are those of limits", "and not has_value(key.wait.pause.name)", "", inside="held_jobs"),
        Mutant("a success does not end the row", "starts_at > succeeded_at", "true", inside="DEAD_IN_A_ROW"),
        Mutant("two dead jobs are a row", "LEAST_DEAD: Final = 3", "LEAST_DEAD: Final = 2", inside="facts.LEAST_DEAD"),
        Mutant(
            "a removed job succeeded",
            "bool_or(place = end_place AND state = 'succeeded')",
            "true",
            inside="FAILING_SCHEDULES",
        ),
        Mutant(
            "a count of runs that was cut is exact",
            "ELSE count(*) < %(runs)s END",
            "ELSE true END",
            inside="FAILING_SCHEDULES",
        ),
        Mutant("schedules that are off fail", "WHERE enabled", "WHERE true", inside="FAILING_SCHEDULES"),
        Mutant("jitter is lateness", " - jitter_seconds", "", inside="FAILING_SCHEDULES"),
        Mutant("any dependent is blocked", "edge.policy = 'block'", "true", inside="DEAD_DEPENDENCIES"),
        Mutant(
            "a dead job in the dead letters is acknowledged",
            "AND dead.acknowledged_at IS NOT NULL",
            "",
            inside="ACKNOWLEDGED_DEPENDENCIES",
        ),
        Mutant(
            "a schedule is a cause beside its task",
            "if found.is_failing and not _is_in_cause_of_task(facts, found):",
            "if found.is_failing:",
            inside="failed_jobs.schedules",
        ),
        Mutant(
            "a task is a cause beside its schedules",
            "if of_task and not _exceeds(found, of_task):",
            "if False:",
            inside="failing_tasks",
        ),
        Mutant("nothing is urgent", "not cause.is_urgent,", "False,", inside="cause.ranked"),
        Mutant("the fewest jobs come first", "-cause.jobs.value", "cause.jobs.value", inside="cause.ranked"),
        Mutant("a reading is kept", "or now - began_at >= AGE_LIMIT_SECONDS", "", inside="current.current"),
        Mutant("a reading is never kept", "facts is None or is_fresh or", "True or", inside="current.current"),
        Mutant(
            "a role without schedules reads them",
            "if may_read else []",
            "",
            inside="read_facts",
        ),
        Mutant(
            "released jobs are read by queue alone",
            "len(by_task) == len(reading.ready)",
            "True",
            inside="facts._by_task",
        ),
    ),
    *of_tests(
        ("tests/stats/test_causes_of_workers.py",),
        Mutant(
            "a workflow fails for ever", "edge.has_cancelled AND dead.is_recent", "true", inside="DEAD_DEPENDENCIES"
        ),
        Mutant("a job hangs without evidence", "counts.total() >= LEAST_ATTEMPTS and ", "", inside="_usual_seconds"),
        Mutant("a usual job hangs", "FACTOR * p95, most)", "p95)", inside="read_hanging"),
        Mutant("a lost worker is lost for ever", " and not _is_replaced(each, facts)", "", inside="lost_workers"),
        Mutant("a deploy mixes releases", "if seconds >= MIXED_SECONDS:", "if seconds:", inside="mixed_releases"),
    ),
    *of_tests(
        ("tests/admin/test_causes.py",),
        Mutant(
            "everybody sees keys on the overview",
            "with_keys and private.may_view(request)",
            "with_keys",
            inside="found_causes",
        ),
        Mutant(
            "everybody sees keys in JSON",
            "with_keys=private.may_view(request)",
            "with_keys=True",
            inside="overview._document",
        ),
        Mutant("Django's index names keys", "with_keys=False", "with_keys=True", inside="pgqueue_causes"),
        Mutant(
            "everybody sees the buttons",
            "if not acts.PAUSE.is_allowed(request.user):",
            "if False:",
            inside="_pause_button",
        ),
        Mutant("an act keeps the reading", 'if request.method == "POST":', "if False:", inside="forget_counts"),
        Mutant(
            "everybody sees causes on the index page",
            ' or not request.user.has_perm("pgqueue.view_job")',
            "",
            inside="pgqueue_causes",
        ),
    ),
]
