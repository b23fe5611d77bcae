"""Mutants of the counts of attempts, and of the figures that are read from the tables.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

STATS = [
    *of_tests(
        ("tests/stats/test_histogram.py",),
        Mutant(
            "a percentile is a bound",
            "BOUNDS[bucket] / (1 + RELATIVE_ERROR)",
            "BOUNDS[bucket]",
            inside="histogram._middle",
        ),
        Mutant("a percentile is one rank too early", "rank <= 0 and", "rank <= 1 and", inside="percentile"),
    ),
    *of_tests(
        ("tests/worker/test_attempt_counter.py",),
        Mutant(
            "a success that another worker wrote counts",
            "countOf(results.values(), SUCCEEDED) == len(reports) == len(results)\n",
            "True\n",
            inside="_count_successes",
        ),
        Mutant(
            "successes count twice",
            "_SUCCESS: Final[Columns] = {}",
            "_SUCCESS = {s: 'succeeded' for s in State}",
            inside="attempt_counter._SUCCESS",
        ),
        Mutant(
            "a lost connection loses the counts",
            "self._tally(key).add(tally)",
            "pass",
            inside="AttemptCounter._put_back",
        ),
        Mutant(
            "a sample counts once",
            "seconds_of(group[first::step]), weight=step",
            "seconds_of(group[first::step])",
            inside="AttemptCounter.count_successes",
        ),
        Mutant("a wait ends with the claim", " + one.started_at - job.claimed_at", "", inside="seconds_of"),
        Mutant(
            "a wait begins with the claim",
            "job := one.claimed).claimed_ms / 1000 - job.run_after.timestamp()",
            "job := one.claimed).claimed_ms * 0",
            inside="seconds_of",
        ),
        Mutant("classes without limit", "(*key[:2], OTHER)", "key", inside="AttemptCounter._tally"),
        Mutant(
            "a merge forgets the run times",
            "SELECT 'run', run.bucket, run.count",
            "SELECT 'wait', run.bucket, run.count",
            "MERGE_ROLLUPS",
        ),
        Mutant(
            "a merge keeps the parts",
            "    DELETE FROM pgqueue_rollup\n    WHERE id =",
            "    UPDATE pgqueue_rollup SET span = span\n    WHERE id =",
            "MERGE_ROLLUPS",
        ),
        Mutant("a merge adds no total", "WHERE %(total_span)s::varchar IS NOT NULL", "WHERE false", "MERGE_ROLLUPS"),
        Mutant(
            "a failure has times of its own", "timed.add_times(", "tally.add_times(", inside="AttemptCounter.observe"
        ),
        Mutant("a merge waits for another", "    FOR UPDATE SKIP LOCKED", "    FOR UPDATE", "MERGE_ROLLUPS"),
        Mutant(
            "all counts are old",
            "          - make_interval(secs => %(retention_seconds)s::float8)\n",
            "\n",
            "PRUNE_ROLLUPS",
        ),
    ),
    *of_tests(
        ("tests/process/test_counts.py",),
        Mutant(
            "a stop loses the counts", "self.services.last_writes.write_counts()", "pass", inside="WorkerProcess._end"
        ),
        Mutant(
            "a settlement counts nothing",
            "            _write(link, counter.write)\n",
            "            pass\n",
            inside="settlement.main",
        ),
    ),
    *of_tests(
        ("tests/stats/test_overall.py",),
        Mutant(
            "paused jobs are due",
            '"paused" if is_paused else "due"',
            '"due"',
            inside="DepthSums.add_ready",
        ),
        Mutant(
            "a lower bound is exact",
            "Count(ready.due, not ready.due_is_cut)",
            "Count(ready.due)",
            inside="DepthSums.add_ready",
        ),
        Mutant("a silent worker is live", "age_seconds < lease_seconds", "True", inside="read_workers"),
        Mutant(
            "a lost job is running",
            "WHERE NOT is_lost AND NOT is_prefetched",
            "WHERE NOT is_prefetched",
            inside="OPEN_EXECUTIONS_BY_TASK",
        ),
        Mutant(
            "a prefetched job is running",
            "WHERE NOT is_lost AND NOT is_prefetched",
            "WHERE NOT is_lost",
            inside="OPEN_EXECUTIONS_BY_TASK",
        ),
        Mutant(
            "a job runs only when its start is recorded",
            "coalesce(worker.concurrency, 0) AS slots",
            "0 AS slots",
            inside="OPEN_EXECUTIONS_BY_TASK",
        ),
        Mutant(
            "a job without a start comes before started ones",
            "ORDER BY opened.started_at IS NULL,\n",
            "ORDER BY\n",
            inside="OPEN_EXECUTIONS_BY_TASK",
        ),
        Mutant(
            "a started job waits for a slot",
            "is_unstarted AND slot",
            "slot",
            inside="OPEN_EXECUTIONS_BY_TASK",
        ),
        Mutant(
            "each job of a chunk takes a slot of its queue",
            "each.slots + each.prefetched",
            "each.total",
            inside="SlotsOfQueues.__init__",
        ),
        Mutant(
            "each job of a chunk has a slot",
            "coalesce(limit_key LIKE '+%%', false)",
            "false",
            inside="OPEN_EXECUTIONS_BY_TASK",
        ),
        Mutant(
            "a retry is scheduled",
            "later.count - later.retrying - later.unknown,",
            "later.count - later.unknown,",
            inside="READY_BY_LANE",
        ),
        Mutant(
            "an old dead letter is of today",
            '"seconds": DAY_SECONDS}',
            '"seconds": 9 * DAY_SECONDS}',
            inside="DepthReading._add_dead",
        ),
    ),
    *of_tests(
        ("tests/stats/test_history.py",),
        Mutant(
            "an hour is a minute",
            "THEN 3600 ELSE 60 END AS seconds,\n       sum",
            "THEN 60 ELSE 60 END AS seconds,\n       sum",
            inside="COUNTS_OVER_TIME",
        ),
        Mutant("a naive time is accepted", "not timezone.is_aware(value):", "False:", inside="_check_aware"),
    ),
    *of_tests(
        ("tests/stats/test_explanation.py",),
        Mutant(
            "lower priorities come first",
            "lane.priority > row.priority",
            "lane.priority != row.priority",
            inside="_comes_first",
        ),
        Mutant("paused queues come first", "if is_paused:", "if False:", inside="_ahead_in_lanes"),
        Mutant(
            "the order of queues is ignored",
            "(place, -lane.priority) < (own_place, -row.priority)",
            "lane.priority > row.priority",
            inside="_comes_first",
        ),
        Mutant("an expired job is due", "if row.is_expired:", "if False:", inside="explanation._of_row"),
        Mutant("a lost job runs", "if row.is_lost or not is_open:", "if not is_open:", inside="explanation._running"),
        Mutant("every job is next", "if busy >= total:", "if False:", inside="_in_line"),
        Mutant(
            "a prefetched job occupies a slot",
            "count(DISTINCT slot) FILTER (WHERE NOT is_prefetched)",
            "count(DISTINCT slot)",
            inside="OPEN_EXECUTIONS_BY_TASK",
        ),
        Mutant(
            "a prefetched job has run",
            "min(since) FILTER (WHERE NOT is_prefetched)",
            "min(since)",
            inside="OPEN_EXECUTIONS_BY_TASK",
        ),
    ),
    *of_tests(
        ("tests/metrics/test_gauges.py",),
        Mutant("a capped gauge is exact", "not count.is_exact", "False", inside="READS"),
        Mutant("further queues are lost", "        if rest:\n", "        if False:\n", inside="Snapshot.__init__"),
        Mutant(
            "an outage fails the scrape",
            "except Error as error:",
            "except ZeroDivisionError as error:",
            inside="collect",
        ),
        Mutant("a missing token opens the view", "token is not None and", "token is None or", inside="_may_read"),
        Mutant("every staff user reads", " and user.has_perm(PERMISSION)", "", inside="_may_read"),
        Mutant("each scrape reads", "collect, alias), CACHE_SECONDS", "collect, alias), 0.0", inside="figures_of"),
    ),
    *of_tests(
        ("tests/stats/test_schedule_runs.py",),
        Mutant(
            "failures before a success count",
            "if run.is_removed or run.state == State.SUCCEEDED:",
            "if run.is_removed:",
            inside="failed_in_a_row",
        ),
        Mutant(
            "a removed job counts as a success",
            "is_exact = not run.is_removed",
            "is_exact = True",
            inside="failed_in_a_row",
        ),
        Mutant(
            "runs that were not read count as none",
            "is_exact = len(runs) < RUNS_READ",
            "is_exact = True",
            inside="failed_in_a_row",
        ),
        Mutant(
            "the first runs are read instead of the last",
            "    ORDER BY tick_at DESC\n    LIMIT",
            "    ORDER BY tick_at\n    LIMIT",
            "RUNS_OF_SCHEDULES",
        ),
        Mutant("a removed job has attempts", " AND job.state IS NOT NULL", "", "RUNS_OF_SCHEDULES"),
        Mutant("a run gives lost attempts a run time", "None if lost else seconds", "seconds", inside="past_runs"),
        Mutant("an open attempt runs on after its lease", "latest.outcome IS NULL\n", "false\n", "RUNS_OF_SCHEDULES"),
    ),
    *of_tests(
        ("tests/admin/test_past_runs.py",),
        Mutant("a page gives lost runs no word", "if run.is_lost:", "if False:", inside="past_runs._run_time"),
        Mutant(
            "a schedule shows run times of jobs to everybody",
            'return request.user.has_perm("pgqueue.view_job")',
            "return True",
            inside="may_view_attempts",
        ),
        Mutant(
            "a failing schedule is on",
            "ScheduleWord.FAILING if failed_in_a_row.value else ScheduleWord.ON",
            "ScheduleWord.ON",
            inside="schedules.words.word_of",
        ),
        Mutant(
            "a paused schedule fails",
            "if is_paused(schedule, seen_at):",
            "if False:",
            inside="schedules.words.word_of",
        ),
        Mutant("a removed job has a page", ' if run.state is not None else ""', "", inside="past_runs._job_url"),
        Mutant(
            "a page hides that jobs were removed",
            "if any(run.is_removed for run in runs[:RUNS_SHOWN]):",
            "if False:",
            inside="past_runs._notes",
        ),
    ),
    *of_tests(
        ("tests/admin/test_overview.py",),
        Mutant(
            "charts of durations have no median",
            '        charts.Series("p50", "p50", [each.p50 for each in durations]),\n',
            "",
            inside="_percentiles",
        ),
    ),
]
