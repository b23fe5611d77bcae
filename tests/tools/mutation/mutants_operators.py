"""Mutants of what operators and applications do at the same moment: exact acts, routers, keys in order, lists.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

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
        inside="ChosenJobs.__init__",
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
        Mutant(
            "an action does not compare what was read",
            "names, seen, alone",
            "names, None, alone",
            inside="ActRun.batches",
        ),
        Mutant(
            "the shell retries any finished job",
            "return (State.DEAD,)",
            "return FINISHED_WORDS",
            inside="_words_to_retry",
        ),
        Mutant(
            "an action needs no filter",
            'if not options["ids"] and not given(options):',
            "if False:",
            inside="changing_actions._run",
        ),
        Mutant(
            "a script is not asked for --yes",
            "(filters.ids and not has_terminal())",
            "not has_terminal()",
            inside="run_action",
        ),
        Mutant("an action ignores its rate", "began + start / rate", "began", inside="change_all"),
    ),
    *of_tests(
        ("tests/management/test_dead_command.py",),
        Mutant(
            "any error stops a retry",
            '            exception_class=Subquery(before.values("exception_class")[:1]),\n',
            "",
            inside="Watch.__call__",
        ),
    ),
    *of_tests(
        ("tests/management/test_jobs_list.py",),
        Mutant(
            "a search has no bound",
            "place__lte=SEARCHED + 1",
            "place__gt=0",
            inside="_search",
        ),
        Mutant("a bounded search does not say so", "if part.is_cut and", "if False and", inside="search.find"),
        Mutant(
            "paused jobs are due too",
            'str(word == "paused").lower() if chooses else ""',
            '""',
            inside="ready_jobs._lanes",
        ),
        Mutant(
            "lanes share no bound", "READY_SEARCHED // max(1, len(searched))", "READY_SEARCHED", inside="find_ready"
        ),
    ),
    *of_tests(
        ("tests/management/test_status.py",),
        Mutant(
            "a missing job has a reason",
            "if found.reason is stats.Reason.GONE:",
            "if False:",
            inside="why_command._run",
        ),
        Mutant(
            "status shows no cause",
            "found[:most]",
            "found[:0]",
            inside="status_command.causes",
        ),
        Mutant("top leaves its screen", '        out.stdout.write(LEAVE, ending="")\n', "", inside="top_command._run"),
        Mutant(
            "top ends in an outage",
            "(InterfaceError, OperationalError)",
            "InterfaceError",
            inside="top_command._lines",
        ),
    ),
]
CLICKS = of_tests(
    ("tests/admin/test_stale_pages.py",),
    Mutant("the page's row does not count", "row.pk: on_page[row.pk]", "row.pk: Seen(*row[1:4])", inside="_fitting"),
    Mutant(
        "succeeded jobs run without a question",
        "counts[State.SUCCEEDED] or (",
        "False or (",
        inside="confirmation.ask",
    ),
    Mutant("dead letters retry anything", "each.state == State.DEAD", "True", inside="_still_listed"),
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
        inside="Insertion.run",
    ),
)
MANY = of_tests(
    ("tests/test_enqueue_many.py",),
    Mutant("all calls have the first options", "chosen.number = given.number", "chosen.number = 0", "ENQUEUE_EACH"),
    Mutant("of each, an age is no age", "=> chosen.expires_seconds", "=> 0 * chosen.expires_seconds", "ENQUEUE_EACH"),
    Mutant("a refused chunk is not rolled back", "or not step.can_be_refused", "or True", inside="Insertion.run"),
    Mutant(
        "a single chunk takes a savepoint", "is_open and not (is_last", "is_open and not (False", inside="Insertion.run"
    ),
    Mutant(
        "unique calls have first options",
        "chosen.number = given.number",
        "chosen.number = 0",
        "ENQUEUE_EACH_UNIQUE",
    ),
    Mutant("calls of another task are taken", "call.task.func is not task.func", "False", inside="bind"),
    Mutant(
        "a list and a dict are a pair",
        "isinstance(call[0], tuple)",
        "isinstance(call[0], tuple | list)",
        inside="calls.arguments_of",
    ),
    Mutant(
        "a repeated call is no duplicate",
        "is_duplicate = job_id in announced",
        "is_duplicate = False",
        inside="insert_keyed",
    ),
    Mutant("the rows of former chunks are kept", "self._rows.clear()", "pass", inside="Insertion._next"),
)
ELSEWHERE = [
    *of_tests(
        ("tests/test_routers.py",),
        Mutant(
            "acts write where a job was read",
            "self.enqueued_on or router.db_for_write(type(self), instance=self)",
            "str(self._state.db)",
            inside="Job.write_alias",
        ),
    ),
    *of_tests(
        ("tests/admin/test_pauses.py",),
        Mutant(
            "each pause is counted by itself",
            "found = jobs_behind(map(_target_of, rows), databases.chosen(request))",
            "found = {(t := _target_of(row)): jobs_behind([t], databases.chosen(request))[t] for row in rows}",
            inside="PauseChangeList.get_results",
        ),
        Mutant(
            "keys that were not counted have no jobs",
            "Count(0, is_exact=False)",
            "Count(0)",
            inside="_waiting_of_limits",
        ),
        Mutant(
            "no running job has a limit", "if limit_key is not None:", "if False:", inside="_RunningCounts.__init__"
        ),
        Mutant(
            "a task runs under one name",
            "registry.names_of(name) if kind is Pausable.TASK",
            "(name,) if kind is Pausable.TASK",
            inside="_RunningCounts.of",
        ),
        Mutant(
            "a cut number of waiting jobs is exact",
            "Count.up_to(count, WAITING_LIMIT)",
            "Count(count)",
            inside="paused_jobs._waiting",
        ),
        Mutant(
            "a cut number of running jobs is exact", "total < RUNNING_LIMIT", "True", inside="_RunningCounts.__init__"
        ),
    ),
    *of_tests(
        ("tests/admin/test_queues.py",),
        Mutant(
            "a button acts on another pause than shown",
            "if target.request.POST.get(button.field) == str(shown.number(at)) and",
            "if",
            inside="buttons._run",
        ),
        Mutant(
            "anybody is offered to cancel the waiting jobs",
            "is_waiting and bulk_acts.is_allowed(request, TransitionName.CANCEL)",
            "is_waiting",
            inside="_clear_url",
        ),
        Mutant(
            "an act on a queue leads to any site",
            'return back if is_here else ""',
            "return back",
            inside="back_of",
        ),
        Mutant(
            "an act on a queue needs no permission",
            "act_view(site, each.act, partial(",
            "act_view(site, None, partial(",
            inside="button_urls",
        ),
    ),
    *of_tests(
        ("tests/admin/test_acts.py",),
        Mutant("the view of an act checks no permission", "if act is not None:", "if False:", inside="act_view"),
        Mutant("a link runs an act", "@require_http_methods(methods)", "", inside="act_view"),
        Mutant(
            "a pause leaves no record", "log_actions(user_id, entries,", "log_actions(user_id, [],", inside="log_change"
        ),
    ),
    *of_tests(
        ("tests/admin/test_job_actions.py",),
        Mutant(
            "the audit forgets jobs that were left before the first change",
            "self._left += left",
            "self._left = left if self._id else 0",
            inside="ActAudit.record",
        ),
    ),
    *of_tests(
        ("tests/admin/test_charts.py",),
        Mutant("a line hides missing values", "< 2 * before.seconds", "< 9 * before.seconds", inside="_is_next"),
        Mutant(
            "few failures are invisible",
            "HEIGHT - axis.y(value), SMALLEST_BAR)",
            "0, HEIGHT - axis.y(value))",
            inside="_stack",
        ),
    ),
    *of_tests(
        ("tests/admin/test_lists.py",),
        Mutant(
            "any condition may stand in the URL",
            "return lookup in LOOKUPS or",
            "return True or",
            inside="ReadOnlyAdmin.lookup_allowed",
        ),
        Mutant(
            "older jobs are not looked at",
            "if part.ids or not part.is_cut or not found.time:",
            "if True:",
            inside="_first_matching",
        ),
        Mutant(
            "an empty list hides what was not searched",
            "        if self.found.scope:\n            return (",
            "        if False:\n            return (",
            inside="JobChangeList.empty_note",
        ),
    ),
    *of_tests(
        ("tests/process/test_scopes.py", "tests/worker/test_django_connections.py"),
        Mutant(
            "jobs share what their thread's context holds",
            "    context = Context()\n    context.run(_make_caches)",
            "    import contextvars\n\n    context = contextvars.copy_context()\n    context.run(_make_caches)",
            inside="clean_context",
        ),
    ),
    *of_tests(
        ("tests/celery_beat/test_times.py", "tests/celery_beat/test_import.py"),
        Mutant(
            "days that match one of two fields of a crontab are enough",
            "    if day not in WEEKS:",
            "    if False:",
            inside="days_of",
        ),
        Mutant(
            "a crontab's range never wraps",
            "    if first > last:",
            "    if False:",
            inside="celery_times._part",
        ),
        Mutant(
            "an import of beat's schedules adds existing ones",
            "    if existing is not None:",
            "    if False:",
            inside="celery_beat._result",
        ),
        Mutant(
            "an import of beat's schedules drops their queues",
            'queue_name=entry.options.get("queue") or None,',
            "",
            inside="_definition",
        ),
    ),
    *of_tests(
        ("tests/admin/test_schedule_queue.py",),
        Mutant(
            "a schedule of the admin has no queue of its own",
            "._replace(**own)",
            "",
            inside="next_job",
        ),
        Mutant(
            "every schedule of the admin has a queue of its own",
            " for name, flag in OWN.items() if getattr(schedule, flag)}",
            " for name in OWN}",
            inside="next_job",
        ),
    ),
]
READING = of_tests(
    ("tests/test_job_filters.py",),
    Mutant(
        "due jobs include later ones",
        "self.ready().filter(run_after__lte=database_now())",
        "self.ready()",
        inside="JobFilters.due",
    ),
    Mutant(
        "a job with a lease is stuck",
        "late = Q(lease_end__lt=database_now())",
        "late = Q()",
        inside="JobFilters.stuck",
    ),
    Mutant(
        "only lost jobs are stuck",
        "        if longer_than is not None:\n",
        "        if False:\n",
        inside="JobFilters.stuck",
    ),
)
DOCTOR = of_tests(
    ("tests/doctor/test_examination.py", "tests/doctor/test_database_checks.py"),
    Mutant(
        "a blind check reports ok",
        "Result(Level.WARNING",
        "Result(Level.OK",
        inside="cannot_see",
    ),
    Mutant("the doctor may write", "            self.rows(READ_ONLY)\n", "", inside="Session.read_only"),
    Mutant(
        "hidden sessions count as seen",
        "    if hidden:\n",
        "    if False:\n",
        file="session_checks.py",
        times=2,
    ),
    Mutant(
        "an invalid index counts as valid",
        "if not is_valid]",
        "if False]",
        inside="_indexes",
    ),
)
PARAMETERS = of_tests(
    ("tests/admin/test_every_url.py",),
    Mutant(
        "a condition with NUL reaches the database",
        'return found.none() if any("\\0" in text for texts in conditions for text in texts) else found',
        "return found",
        inside="DatabaseChangeList.get_queryset",
    ),
    Mutant(
        "an action takes ids that are no numbers",
        "row_id_of(text) is None for",
        "False for",
        inside="ReadOnlyAdmin.response_action",
    ),
)
ONE_RECORD = of_tests(
    ("tests/admin/test_acts.py",),
    Mutant("a double click pauses twice", "only_new=pause is None", "only_new=False", inside="buttons._pause"),
    Mutant(
        "a double click changes a limit twice", "only_new=own is None,", "only_new=False,", inside="limits.form._change"
    ),
)
UNSEEN = [
    Mutant(
        "a pause needs no permission to see pauses",
        " and self.has_view_permission(request)",
        "",
        inside="PauseAdmin.has_add_permission",
        tests=("tests/admin/test_pauses.py",),
    ),
    *(
        Mutant(
            f"{name} needs no permission to see schedules",
            " and self.has_view_permission(request)",
            "",
            inside=f"ScheduleAdmin.has_{name}_permission",
            tests=("tests/admin/test_schedules.py",),
        )
        for name in ("add", "delete")
    ),
    Mutant(
        "the form of Enqueue reveals unique keys",
        "if reads_arguments(task.unique_key) and not private.may_view(request):",
        "if False:",
        inside="enqueue_view",
        tests=("tests/admin/test_enqueue_form.py",),
    ),
]
LINES = of_tests(
    ("tests/management/test_forged_lines.py",),
    Mutant("a line break in a name begins a line", '.replace("\\n", "\\\\n")', "", inside="in_line"),
    Mutant("an error begins lines", "indent(error, INDENT)", "error", inside="_write_failure"),
)
GONE = of_tests(
    ("tests/admin/test_workers.py",),
    Mutant(
        "a stopped process has no page",
        "return self._record(request, object_id, alias)",
        'return redirect_to(request, "worker_changelist")',
        inside="WorkerAdmin.change_view",
    ),
    Mutant("a removed process has a page", "page.status_code = 404", "pass", inside="WorkerAdmin._record"),
    Mutant("no attempt links its worker", "if worker_id > 0", "if False", inside="attempts.link_workers"),
    Mutant("a lost process has stopped", "if worker.stopped_at else _(", "if True else _(", inside="record_context"),
)
NAMES = of_tests(
    ("tests/admin/test_schedules.py",),
    Mutant("a title hides characters", "return in_line(self.name)", "return self.name", inside="Schedule.__str__"),
    Mutant(
        "a form hides characters", "in_line(value) != value", "False", inside="ScheduleForm._show_hidden_characters"
    ),
    Mutant(
        "a hidden character is HTML",
        'format_html("{} <code>{}</code> ", *text)',
        '"{} <code>{}</code> ".format(*text)',
        inside="ScheduleForm._show_hidden_characters",
    ),
)
AUDITED = of_tests(
    ("tests/test_control.py", "tests/admin/test_acts.py", "tests/management/test_other_commands.py"),
    Mutant(
        "an ended pause is replaced",
        "      AND (paused_until IS NULL OR paused_until > statement_timestamp() + %(time_shift)s::interval)\n",
        "",
        "PAUSE",
    ),
    Mutant(
        "the entry of a pause has no end",
        '"until": ends_at and ends_at.isoformat()',
        '"until": None',
        inside="pauses.pause",
    ),
    Mutant("a resumed queue has no entry", "for pause in rows:", "for pause in ():", inside="pauses.resume"),
    Mutant("nobody resumed a queue", "done_by=resumed_by", 'done_by=""', inside="pauses.resume"),
    Mutant("a stopped clear goes on", "if entry.is_stop_asked:", "if False:", inside="queues._clear"),
    Mutant(
        "clear records jobs that depend on others",
        "sorted(set(batch).intersection(changed))",
        "sorted(changed)",
        inside="_Clearing.record",
    ),
    Mutant("a run of a schedule has no job", "name, by, [fired.job_id])", "name, by)", inside="run_now"),
    Mutant("a closed batch has no entry", "if was_open:", "if False:", inside="batch_closing.close_batch"),
)
ATTEMPTS = of_tests(
    ("tests/worker/test_changed_attempts.py",),
    Mutant(
        "a failure does not compare the row's attempts",
        "CASE WHEN locked.has_more THEN coalesce(",
        "CASE WHEN true THEN coalesce(",
        "FAIL",
    ),
    Mutant(
        "a job that got attempts is dead",
        "coalesce(given.delay_seconds, given.spare_seconds)",
        "given.delay_seconds",
        "FAIL",
    ),
    Mutant(
        "a running job loses its present attempt",
        "job.state = 'running' THEN 0 ELSE 1 END",
        "job.state = 'running' THEN 1 ELSE 1 END",
        "SET_MAX_ATTEMPTS",
    ),
    Mutant(
        "a change of attempts does not compare run_after",
        " AND (seen.state = '' OR job.state = seen.state AND job.run_after = seen.instant::timestamptz) AS changes",
        " AS changes",
        "SET_MAX_ATTEMPTS",
    ),
)
OPERATORS = [
    *ATTEMPTS,
    *(*EXACT, *SHELL, *CLICKS, *MEETING, *MANY, *ELSEWHERE, *READING, *DOCTOR),
    *(*PARAMETERS, *ONE_RECORD, *UNSEEN, *LINES, *GONE, *NAMES, *AUDITED),
]
