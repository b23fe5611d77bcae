"""Mutants of what operators and applications do at the same moment: exact acts, routers, keys in order, lists.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

ACTS = "django_pgqueue/admin/job_actions.py"
SHELL_ACTS = "django_pgqueue/management/subcommands/changing_actions.py"
BATCHES = "django_pgqueue/management/subcommands/batches.py"
SEARCH = "django_pgqueue/job_search/search.py"
READY = "django_pgqueue/job_search/ready_jobs.py"
COMMANDS = "django_pgqueue/management/subcommands"
QUEUE_ACTIONS = "django_pgqueue/admin/queue_actions.py"
CHARTS = "django_pgqueue/admin/charts.py"
BULK = "django_pgqueue/enqueue/bulk.py"
CALLS = "django_pgqueue/enqueue/calls.py"
AS_SEEN = "job.state <> seen.state OR job.finished_at IS DISTINCT FROM nullif(seen.instant, '')::timestamptz"

EXACT = of_tests(
    ("tests/concurrency/test_seen.py",),
    Mutant("a retry does not compare finished_at", AS_SEEN, "job.state <> seen.state", "RETRY"),
    Mutant("a cancel does not compare the state", "job.state <> seen.state OR ", "", "CANCEL"),
    Mutant("run now does not compare run_after", " AND job.run_after = seen.instant::timestamptz", "", "RUN_NOW"),
    Mutant("move does not compare run_after", " AND job.run_after = seen.instant::timestamptz", "", "MOVE"),
    Mutant("a delete does not compare finished_at", AS_SEEN, "job.state <> seen.state", "DELETE"),
    Mutant(
        "a queryset retries what died since",
        "if began is None and finished_before:",
        "if False:",
        path="django_pgqueue/models/operations.py",
    ),
    Mutant(
        "a schedule runs again whenever it ran last",
        "AND (%(seen_last_run)s = 'any' OR last_run_at",
        "AND (true OR last_run_at",
        "RUN_SCHEDULE",
    ),
)
SHELL = [
    *of_tests(
        ("tests/management/test_changing_actions.py",),
        Mutant("an action does not compare what was read", "names, seen, record", "names, None, record", path=BATCHES),
        Mutant("the shell retries any finished job", "return (State.DEAD,)", "return FINISHED_WORDS", path=SHELL_ACTS),
        Mutant(
            "an action needs no filter", 'if not options["ids"] and not given(options):', "if False:", path=SHELL_ACTS
        ),
        Mutant("a script is not asked for --yes", "        if filters.ids:", "        if True:", path=SHELL_ACTS),
        Mutant("an action ignores its rate", "began + start / rate", "began", path=BATCHES),
    ),
    *of_tests(
        ("tests/management/test_dead_command.py",),
        Mutant(
            "any error stops a retry",
            '            exception_class=Subquery(before.values("exception_class")[:1]),\n',
            "",
            path="django_pgqueue/management/subcommands/dead_command.py",
        ),
    ),
    *of_tests(
        ("tests/management/test_jobs_list.py",),
        Mutant(
            "a search has no bound",
            "place__lte=SEARCHED + 1",
            "place__gt=0",
            path=SEARCH,
        ),
        Mutant("a bounded search does not say so", "if part.is_cut and", "if False and", path=SEARCH),
        Mutant("paused jobs are due too", 'word == "paused" if chooses else None', "None", path=READY),
        Mutant("lanes share no bound", "READY_SEARCHED // max(1, len(searched))", "READY_SEARCHED", path=READY),
    ),
    *of_tests(
        ("tests/management/test_status.py",),
        Mutant(
            "a missing job has a reason",
            "if found.reason is stats.Reason.GONE:",
            "if False:",
            path=f"{COMMANDS}/why_command.py",
        ),
        Mutant(
            "status names no unserved queue",
            "if overview.unserved_queues:",
            "if False:",
            path=f"{COMMANDS}/status_command.py",
        ),
        Mutant(
            "top leaves its screen", '        stdout.write(LEAVE, ending="")\n', "", path=f"{COMMANDS}/top_command.py"
        ),
        Mutant(
            "top ends in an outage",
            "(InterfaceError, OperationalError)",
            "InterfaceError",
            path=f"{COMMANDS}/top_command.py",
        ),
    ),
]
CLICKS = of_tests(
    ("tests/admin/test_stale_pages.py",),
    Mutant("the page's row does not count", "row.pk: on_page[row.pk]", "row.pk: Seen(*row[1:4])", path=ACTS),
    Mutant(
        "succeeded jobs run without a question",
        "or not counts[State.SUCCEEDED] or",
        "or True or",
        path="django_pgqueue/admin/confirmation.py",
    ),
    Mutant("dead letters retry anything", "each.state == State.DEAD", "True", path=ACTS),
)
MEETING = of_tests(
    ("tests/concurrency/test_many_unique.py",),
    Mutant(
        "keys are taken in the order of calls",
        "ORDER BY given.call ->> 'key' COLLATE \"C\", given.place",
        "ORDER BY given.place",
        "ENQUEUE_MANY_UNIQUE",
    ),
    Mutant(
        "keys are replaced in the order of calls",
        "ORDER BY given.call ->> 'key' COLLATE \"C\", given.place",
        "ORDER BY given.place",
        "ENQUEUE_MANY_OR_REPLACE",
    ),
    Mutant(
        "keys of several options are taken in the order of calls",
        'ORDER BY chosen.task_name COLLATE "C", given.key COLLATE "C", given.place',
        "ORDER BY given.place",
        "ENQUEUE_EACH_UNIQUE",
    ),
    Mutant(
        "batches are in the order of calls",
        "if not is_last and self._sort_by_key(sequence)",
        "if False",
        path=BULK,
    ),
)
MANY = of_tests(
    ("tests/test_enqueue_many.py",),
    Mutant("all calls have the first options", "chosen.number = given.number", "chosen.number = 0", "ENQUEUE_EACH"),
    Mutant("of each, an age is no age", "=> chosen.expires_seconds", "=> 0 * chosen.expires_seconds", "ENQUEUE_EACH"),
    Mutant("a refused chunk is not rolled back", "or not step.can_be_refused", "or True", path=BULK),
    Mutant("a single chunk takes a savepoint", "is_open and not (is_last", "is_open and not (False", path=BULK),
    Mutant(
        "unique calls have first options",
        "chosen.number = given.number",
        "chosen.number = 0",
        "ENQUEUE_EACH_UNIQUE",
    ),
    Mutant("calls of another task are taken", "call.task.func is not task.func", "False", path=CALLS),
    Mutant(
        "a list and a dict are a pair", "isinstance(call[0], tuple)", "isinstance(call[0], tuple | list)", path=CALLS
    ),
    Mutant(
        "a repeated call is no duplicate",
        "is_duplicate = job_id in announced",
        "is_duplicate = False",
        path="django_pgqueue/enqueue/many_unique.py",
    ),
    Mutant("the rows of former chunks are kept", "self._rows.clear()", "pass", path=BULK),
)
ELSEWHERE = [
    *of_tests(
        ("tests/test_routers.py",),
        Mutant(
            "acts write where a job was read",
            "self.enqueued_on or router.db_for_write(type(self), instance=self)",
            "str(self._state.db)",
            path="django_pgqueue/models/jobs.py",
        ),
    ),
    *of_tests(
        ("tests/admin/test_hostile.py",),
        Mutant(
            "the list of pauses checks names",
            "control.waiting_behind(*_target_of(pause), _alias_of(pause)).order_by()",
            "control.waiting(pause.name, database=_alias_of(pause)).order_by()",
            path="django_pgqueue/admin/pauses.py",
        ),
    ),
    *of_tests(
        ("tests/admin/test_queues.py",),
        Mutant(
            "a button acts on another pause than shown",
            'if request.POST.get(PAUSE_FIELD) == ("" if',
            'if True or request.POST.get(PAUSE_FIELD) == ("" if',
            path=QUEUE_ACTIONS,
        ),
        Mutant(
            "anybody is offered to cancel the waiting jobs",
            "is_waiting and bulk_acts.is_allowed(request, TransitionName.CANCEL)",
            "is_waiting",
            path="django_pgqueue/admin/console/queue_rows.py",
        ),
        Mutant(
            "an act on a queue leads to any site",
            'return back if is_here else ""',
            "return back",
            path="django_pgqueue/admin/posted.py",
        ),
        Mutant(
            "an act on a queue needs no permission",
            'request.user.has_perms(["pgqueue.view_job", *permissions])',
            "request.user.is_staff",
            path=QUEUE_ACTIONS,
        ),
    ),
    *of_tests(
        ("tests/admin/test_charts.py",),
        Mutant("a line hides missing values", "< 2 * before.seconds", "< 9 * before.seconds", path=CHARTS),
        Mutant(
            "few failures are invisible",
            "HEIGHT - axis.y(value), SMALLEST_BAR)",
            "0, HEIGHT - axis.y(value))",
            path=CHARTS,
        ),
    ),
    *of_tests(
        ("tests/admin/test_lists.py",),
        Mutant(
            "any condition may stand in the URL",
            "return lookup in LOOKUPS or",
            "return True or",
            path="django_pgqueue/admin/readonly.py",
        ),
        Mutant(
            "older jobs are not looked at",
            "if part.ids or not part.is_cut or not found.time:",
            "if True:",
            path=SEARCH,
        ),
        Mutant(
            "an empty list hides what was not searched",
            "        if self.found.scope:\n            return (",
            "        if False:\n            return (",
            path="django_pgqueue/admin/job_list.py",
        ),
    ),
    *of_tests(
        ("tests/process/test_scopes.py", "tests/worker/test_django_connections.py"),
        Mutant(
            "jobs share what their thread's context holds",
            "    context = Context()\n    context.run(_make_caches)",
            "    import contextvars\n\n    context = contextvars.copy_context()\n    context.run(_make_caches)",
            path="django_pgqueue/worker/runtime/django_connections.py",
        ),
    ),
    *of_tests(
        ("tests/celery_beat/test_times.py", "tests/celery_beat/test_import.py"),
        Mutant(
            "days that match one of two fields of a crontab are enough",
            "    if day not in WEEKS:",
            "    if False:",
            path="django_pgqueue/management/celery_times.py",
        ),
        Mutant(
            "a crontab's range never wraps",
            "    if first > last:",
            "    if False:",
            path="django_pgqueue/management/celery_times.py",
        ),
        Mutant(
            "an import of beat's schedules adds existing ones",
            "    if existing is not None:",
            "    if False:",
            path="django_pgqueue/management/celery_beat.py",
        ),
        Mutant(
            "an import of beat's schedules drops their queues",
            'queue_name=entry.options.get("queue") or None,',
            "",
            path="django_pgqueue/management/celery_beat.py",
        ),
    ),
    *of_tests(
        ("tests/admin/test_schedule_queue.py",),
        Mutant(
            "a schedule of the admin has no queue of its own",
            "._replace(**own)",
            "",
            path="django_pgqueue/schedules/job_options.py",
        ),
        Mutant(
            "every schedule of the admin has a queue of its own",
            " for name, flag in OWN.items() if getattr(schedule, flag)}",
            " for name in OWN}",
            path="django_pgqueue/schedules/job_options.py",
        ),
    ),
]
FILTERS = "django_pgqueue/models/job_filters.py"
READING = of_tests(
    ("tests/test_job_filters.py",),
    Mutant(
        "due jobs include later ones",
        "self.ready().filter(run_after__lte=database_now())",
        "self.ready()",
        path=FILTERS,
    ),
    Mutant("a job with a lease is stuck", "late = Q(lease_expires_at__lt=database_now())", "late = Q()", path=FILTERS),
    Mutant("only lost jobs are stuck", "        if longer_than is not None:\n", "        if False:\n", path=FILTERS),
)
DOCTOR = of_tests(
    ("tests/doctor/test_examination.py", "tests/doctor/test_database_checks.py"),
    Mutant(
        "a blind check reports ok",
        'Result(Level.WARNING, f"Cannot see',
        'Result(Level.OK, f"Cannot see',
        path="django_pgqueue/doctor/findings.py",
    ),
    Mutant("the doctor may write", "            self.rows(READ_ONLY)\n", "", path="django_pgqueue/doctor/session.py"),
    Mutant(
        "hidden sessions count as seen",
        "    if hidden:\n",
        "    if False:\n",
        path="django_pgqueue/doctor/session_checks.py",
        times=2,
    ),
    Mutant(
        "an invalid index counts as valid",
        "if not is_valid]",
        "if False]",
        path="django_pgqueue/doctor/storage_checks.py",
    ),
)
OPERATORS = [*EXACT, *SHELL, *CLICKS, *MEETING, *MANY, *ELSEWHERE, *READING, *DOCTOR]
