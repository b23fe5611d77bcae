"""Mutants of the release of a worker, and of what charts and the timeline of a job show of people and deploys.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

TIMELINE = [
    *of_tests(
        ("tests/test_commands.py",),
        Mutant(
            "an argument does not replace the variable",
            '(given, "--release") if given else (os',
            "(os",
            inside="release_name",
        ),
        Mutant("a release has control characters", "name != in_line(name) or ", "", inside="release_name"),
        Mutant(
            "a release is longer than its column", "if len(name) > MOST_CHARACTERS:", "if False:", inside="release_name"
        ),
    ),
    *of_tests(
        ("tests/stats/test_past_acts.py",),
        Mutant("the oldest release is a deploy", "in found[1:]", "in found", inside="_first_starts"),
        Mutant("a person's process is a deploy", "supervisor_pid IS NOT NULL", "true", "PAST_ACTS", times=2),
        Mutant(
            "the version of a named release is new",
            "        versions.add(start.version)\n",
            "        versions.add(start.release or start.version)\n",
            inside="_first_starts",
        ),
        Mutant("the first acts are read", "began_at DESC\n    LIMIT", "began_at\n    LIMIT", "PAST_ACTS"),
        Mutant("acts on one job are on charts", "act.jobs > 1 OR ", "true OR ", "PAST_ACTS"),
    ),
    *of_tests(
        ("tests/admin/test_past_acts.py",),
        Mutant(
            "a chart shows a limit key",
            "limit_key and private.shown_key(request, limit_key)",
            "limit_key",
            inside="target_text",
        ),
        Mutant(
            "the reason names a hidden limit key",
            "if act.reason and is_visible else",
            "if act.reason else",
            inside="act_text",
        ),
        Mutant(
            "acts on other queues are on the chart of a queue",
            "act.can_concern(QUEUES, {self._queue})",
            "True",
            inside="ChartScope.has",
        ),
        Mutant(
            "retries of chosen jobs are on the charts of every queue",
            "not act.is_on_chosen_jobs",
            "True",
            inside="ChartScope.has",
        ),
        Mutant(
            "acts on tasks of other queues are on the chart of a queue",
            "task is None or task.queue_name == self._queue or",
            "True or",
            inside="ChartScope._runs_here",
        ),
        Mutant(
            "a task that has run in the queue is not of its chart",
            "or task_name in self._have_run",
            "",
            inside="ChartScope._runs_here",
        ),
        Mutant(
            "every stop of a worker concerns a job",
            "isinstance(worker_id, int) and worker_id in worker_ids",
            "True",
            inside="past_acts._concerns",
        ),
        Mutant(
            "former names of a task are forgotten",
            "in registry.names_of(job.task_name)",
            "== job.task_name",
            inside="past_acts._concerns",
        ),
        Mutant(
            "an edited job was made from another", "act.began_at <= job.enqueued_at", "True", inside="_words_on_job"
        ),
        Mutant("the audit forgets where a job was moved", ", **self.target}", "}", inside="JobOperation.run"),
    ),
    *of_tests(
        ("tests/admin/test_audit_page.py",),
        Mutant("a filtered audit reads all entries", "if floor is not None:", "if False:", inside="find_entries"),
        Mutant("older acts forget the filters", "**given, before=before", "before=before", inside="page_link"),
        Mutant(
            "jobs that died again come last",
            "ORDER.index(job.became)",
            "-ORDER.index(job.became)",
            inside="act_jobs.act_jobs",
        ),
    ),
    *of_tests(
        ("tests/admin/test_job_actions.py",),
        Mutant(
            "a node is retried without its failed dependency, and nobody asks",
            "why.reason is not stats.Reason.DEPENDENCY_FAILED",
            "True",
            inside="JobOperation._ask_of_failed_dependency",
        ),
        Mutant(
            "a running job is stopped without a question",
            "if seen[job.pk].state != State.RUNNING",
            "if True",
            inside="CancelOperation.ask",
        ),
    ),
    *of_tests(
        ("tests/admin/test_charts.py",),
        Mutant(
            "a spike flattens the rest",
            "return usual if found[-1] > SPIKE_FACTOR * usual else found[-1]",
            "return found[-1]",
            inside="highest_shown",
        ),
        Mutant("every highest value is cut off", "found[-1] > SPIKE_FACTOR * usual", "True", inside="highest_shown"),
        Mutant(
            "the day before is a spike",
            "max(highest_shown(peaks), ",
            "(highest_shown(peaks) or ",
            inside="charts._highest_shown",
        ),
        Mutant("the day before bridges a gap", "if start == end else", "if end else", inside="charts._steps"),
    ),
    *of_tests(
        ("tests/admin/test_activity.py",),
        Mutant(
            "a chart counts all tasks",
            "queue=queue, task=task, with_failures",
            "queue=queue, with_failures",
            inside="activity_context",
        ),
        Mutant(
            "the day before is this day",
            "if point.starts_at < found.until - DAY]",
            "if point.starts_at >= since]",
            inside="activity_context",
        ),
        Mutant(
            "cancelled attempts have not failed",
            "ended = counts.succeeded + counts.failed",
            "ended = counts.succeeded + counts.failed + counts.cancelled",
            inside="failure_rate",
        ),
    ),
]
