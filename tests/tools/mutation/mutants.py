"""Mutants of schedules, unique jobs, pauses, cancelling, expiry, progress, waiting, middleware and the waker.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from typing import NamedTuple


class Mutant(NamedTuple):
    """`old` becomes `new`, in the code that `statement`, `inside` or `file` names.

    `old` must occur `times` times there. The code can move to another module: its name finds it.
    """

    name: str
    old: str
    new: str
    statement: str = ""
    """The name of an SQL statement. Only this statement changes, also where its text stands in a clause of several."""
    inside: str = ""
    """The name of a class, function or constant, such as `Claimer._note_failure`. Separate several names with commas.

    If several definitions with this name contain `old`, prefix it with the last parts of the module: `claims.claim`.
    """
    file: str = ""
    """The name of a file, for what has no name of its own: imports, and all that is not Python."""
    times: int = 1
    tests: tuple[str, ...] = ()
    """Files that are to kill it; the quick choice if none is named."""


def of_tests(tests: tuple[str, ...], *mutants: Mutant) -> list[Mutant]:
    return [mutant._replace(tests=tests) for mutant in mutants]


NOT_SKIPPED = ("FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE")
KEY_GIVEN_UP = "        unique_key = CASE WHEN job.unique_ready_only IS NULL THEN job.unique_key END,\n"
HELD = "WHERE pgqueue_uniqueness_window.ends_at <= statement_timestamp()"
PAUSED_NAMES = " task_name <> ALL (%(paused_task_names)s::varchar[])\n"

SCHEDULES = of_tests(
    ("tests/concurrency/test_schedules.py", "tests/worker/test_scheduler.py", "tests/test_stateful_schedules.py"),
    Mutant("a tick of a changed definition fires", "AND revision = tick.revision", "", "FIRE"),
    Mutant("a tick is fired whatever the next one is", "AND next_run_at = tick.expected_at", "", "FIRE"),
    Mutant("a paused schedule fires", "AND enabled", "", "FIRE"),
    Mutant("what no code has fires", "origin = 'admin'", "true", "FIRE"),
    Mutant(
        "a tick is fired before its time",
        "AND tick.tick_at <= ",
        "AND tick.tick_at - interval '1 day' <= ",
        "FIRE",
    ),
    Mutant("FIRE waits for a locked row", *NOT_SKIPPED, "FIRE"),
    Mutant("a tick on record is fired again", "THEN 'again'", "THEN 'fired'", "FIRE"),
    Mutant("the first ticks are looked at instead of the last", "ORDER BY tick_at DESC", "ORDER BY tick_at", "FIRE"),
    Mutant("a finished job keeps the next tick away", "finished_at IS NULL OFFSET", "true OFFSET", "FIRE"),
    Mutant("a tick that waits is passed by", " AND drawn.what <> 'waits'", "", "FIRE"),
    Mutant("a skipped tick is not on record", "'fired', 'skipped', 'duplicate'", "'fired', 'duplicate'", "FIRE"),
    Mutant("a tick whose key is taken is not on record", "'skipped', 'duplicate'", "'skipped'", "FIRE"),
    Mutant("a frozen worker keeps schedules locked", "coalesce(%(idle_wait)s::text, ", "coalesce(NULL, ", "FIRE"),
    Mutant(
        "a skipped tick forgets the last job",
        "coalesce(drawn.job_id, schedule.last_job_id)",
        "drawn.job_id",
        "FIRE",
    ),
    Mutant(
        "jitter is ignored",
        'job.row["delay_seconds"] = random.uniform(0, self.schedule.jitter_seconds)',
        "random.uniform(0, self.schedule.jitter_seconds)",
        inside="_Due.next_tick",
    ),
    Mutant(
        "a key that is taken leaves the tick fired",
        "if len(add_jobs(connection, jobs)) < len(jobs):",
        "if add_jobs(connection, jobs) is None:",
        inside="ticks._add",
    ),
    Mutant(
        "later ticks of a turn are forgotten",
        "        due.append(one)\n        return math.inf\n    return (",
        "        return math.inf\n    return (",
        inside="_settle",
    ),
    Mutant("a turn never ends", "if time.monotonic() > until:", "if False:", inside="fire_all"),
    Mutant(
        "late schedules are not fired first",
        "key=lambda schedule: schedule.next_run_at",
        "key=lambda schedule: schedule.schedule_id",
        inside="fire_all",
    ),
    Mutant(
        "a problem is logged again each turn",
        "is_over=not is_due(schedule)",
        "is_over=True",
        inside="fire_all",
    ),
    Mutant(
        "a run by hand is not on record",
        "%(time_shift)s::interval, job_id\n    FROM drawn",
        "%(time_shift)s::interval, NULL\n    FROM drawn",
        "RUN_SCHEDULE",
    ),
    Mutant(
        "a late plan is written",
        "      AND least(greatest(next_run_at, '0001-01-03 UTC'), '9999-12-28 UTC') = %(expected_at)s::timestamptz\n",
        "",
        "PLAN_SCHEDULE",
    ),
    Mutant("a plan of a changed definition is written", " AND revision = %(revision)s", "", "PLAN_SCHEDULE"),
    Mutant("a change loses the tick that is due", "CASE WHEN mine.is_due", "CASE WHEN false", "CHANGE_SCHEDULE"),
    Mutant("a change counts for none", "schedule.revision + 1", "schedule.revision", "CHANGE_SCHEDULE"),
    Mutant(
        "a resumed schedule keeps its former tick",
        "schedules.plan_schedule(connection, schedule, next_run_at)",
        "pass",
        inside="run_and_resume._plan_from_now",
    ),
    Mutant("a change waits for a locked row", *NOT_SKIPPED, "CHANGE_SCHEDULE"),
    Mutant("a skipped run fires", "WHEN on_record.skipped_by IS NOT NULL", "WHEN false", "FIRE"),
    Mutant("a skip by a stale page", "      AND revision = %(revision)s\n", "", "WITH_NEXT_RUN"),
    Mutant("a stale worker fires a skipped run", "SET revision = revision + 1", "SET revision = revision", "SKIP_RUN"),
    Mutant(
        "an undo removes a tick that has fired",
        "      AND skipped_by IS NOT NULL\n    RETURNING",
        "    RETURNING",
        "UNDO_SKIP",
    ),
    Mutant(
        "a pause with an end fires", "CASE WHEN paused_until > ", "CASE WHEN paused_until IS NULL AND now() > ", "FIRE"
    ),
    Mutant(
        "the worker sleeps past the end of a pause",
        "min(wait_seconds, *pauses, math.inf)",
        "wait_seconds",
        inside="Scheduler.turn",
    ),
    Mutant(
        "the ticks of a pause are owed",
        "coalesce(%(next_run_at)s::timestamptz, schedule.next_run_at)",
        "schedule.next_run_at",
        "SWITCH_SCHEDULE",
    ),
    Mutant("what the code has is removed", "OR confirmed_at < ", "OR confirmed_at > ", "REMOVE_SCHEDULES"),
    Mutant(
        "a removed schedule's ticks stay",
        "pgqueue_schedulerun WHERE schedule_id = ANY (ARRAY (SELECT id FROM old))",
        "pgqueue_schedulerun WHERE false",
        "REMOVE_SCHEDULES",
    ),
    Mutant("the last ticks are forgotten too", "OFFSET %(kept)s", "OFFSET 0 * %(kept)s", "PRUNE_SCHEDULE_RUNS"),
    Mutant(
        "young ticks are forgotten",
        "secs => %(retention_seconds)s::float8",
        "secs => 0 * %(retention_seconds)s::float8",
        "PRUNE_SCHEDULE_RUNS",
    ),
    Mutant(
        "a new definition is nobody's",
        "THEN statement_timestamp() + %(time_shift)s::interval END\n)",
        "THEN NULL::timestamptz END\n)",
        "ADD_SCHEDULE",
    ),
    Mutant(
        "nobody's word is asked",
        "or schedule.unconfirmed_seconds < CONFIRMED_SECONDS",
        "or True",
        inside="is_confirmed",
    ),
    Mutant("the first missed tick runs for all", "ticks[-1:] if", "ticks[:1] if", inside="due_ticks"),
    Mutant("the first missed ticks are made up for", "[-MISSED_LIMIT:]", "[:MISSED_LIMIT]", inside="due_ticks"),
    Mutant(
        "what is only late is missed",
        "LATE_SECONDS: Final = 60.0",
        "LATE_SECONDS: Final = 0.0",
        inside="firing.LATE_SECONDS",
    ),
    Mutant(
        "old code never takes over again",
        "is_older and self._silent_seconds(row) <= CONFIRMED_SECONDS",
        "is_older",
        inside="Scheduler._store_definition",
    ),
    Mutant(
        "old code takes over at once",
        "is_older and self._silent_seconds(row) <= CONFIRMED_SECONDS",
        "False",
        inside="Scheduler._store_definition",
    ),
    Mutant(
        "a word that was given is not seen",
        "since if confirmed_at == schedule.confirmed_at else now",
        "since",
        inside="Scheduler._track_confirmations",
    ),
    Mutant("an error is no reason to forget", "            self.scheduler.forget()\n", "", inside="Schedules.tick"),
    Mutant(
        "a clock that went back keeps the word",
        "not 0 <= row.unconfirmed",
        "not row.unconfirmed",
        inside="Scheduler._store_definitions",
    ),
    Mutant(
        "a fired job wakes nobody",
        "        wake_workers(connection)\n    refused",
        "        pass\n    refused",
        inside="_fire",
    ),
    Mutant("one of the code follows its task", "schedule.options if schedule.is_of_code else ", "", inside="next_job"),
    Mutant(
        "an error of one schedule ends the turn",
        "or _concerns_all_schedules(error, schedule)",
        "or True",
        inside="Scheduler._contain_errors",
    ),
)
TICKS = of_tests(
    ("tests/test_expressions.py", "tests/worker/test_scheduler.py"),
    Mutant("a tick that is just due is left for later", "tick <= until", "tick < until", inside="last_between"),
    Mutant("the repeated hour is gone through twice", "if tick > last:", "if tick != last:", inside="ticks_after"),
    Mutant("an interval's tick comes again", "// step + 1) * step", "// step) * step", inside="_multiples"),
    Mutant(
        "the first ticks between two instants", "return ticks[-most:]", "return ticks[:most]", inside="last_between"
    ),
    Mutant(
        "intervals begin with the worker",
        "((instant - EPOCH) // step + 1) * step",
        "(instant - EPOCH) + step",
        inside="_multiples",
    ),
)
UNIQUE = of_tests(
    ("tests/concurrency/test_unique.py", "tests/test_unique.py", "tests/test_stateful.py"),
    Mutant("a running job is replaced", "WHERE pgqueue_job.state = 'ready'\n", "", "ENQUEUE_OR_REPLACE"),
    Mutant("a replacement keeps the attempts", "attempt = 0, crashes = 0, ", "", "ENQUEUE_OR_REPLACE"),
    Mutant("a replacement keeps its time", "run_after = excluded.run_after, ", "", "ENQUEUE_OR_REPLACE"),
    Mutant("of many, a running job is replaced", "WHERE pgqueue_job.state = 'ready'\n", "", "ENQUEUE_MANY_OR_REPLACE"),
    Mutant("of many with one key the first counts", "ORDER BY place DESC", "ORDER BY place", "ENQUEUE_MANY_OR_REPLACE"),
    Mutant("of many without a key one is added", " OR given.call ->> 'key' IS NULL", "", "ENQUEUE_MANY_OR_REPLACE"),
    Mutant("a failed job keeps its key", KEY_GIVEN_UP, "", "FAIL"),
    Mutant("a released job keeps its key", KEY_GIVEN_UP, "", "RELEASE"),
    Mutant("a rescued job keeps its key", KEY_GIVEN_UP, "", "RESCUE"),
    Mutant("every failed job gives up its key", "WHEN job.unique_ready_only IS NULL THEN", "WHEN false THEN", "FAIL"),
    Mutant("all of several with one key are retried", "OR rank = 1 AND (", "OR (", "RETRY"),
    Mutant(
        "of several with one key the first is retried", "ORDER BY id DESC) AS rank", "ORDER BY id) AS rank", "RETRY"
    ),
    Mutant(
        "a retry does not see who runs",
        "(owner.state = 'ready' OR (owner.state = 'running' AND owner.unique_ready_only IS NULL))",
        "owner.state = 'ready'",
        "RETRY",
    ),
    Mutant("another task's job has the key", "    WHERE task_name = %(task_name)s\n      AND", "    WHERE", "HOLDERS"),
    Mutant("no second try to have a key", "for _ in range(TRIES):", "for _ in range(1):", inside="_insert_unique"),
    Mutant("of many none is refused", 'if is_duplicate and on_conflict == "raise"', "if False", inside="insert_keyed"),
    Mutant(
        "an existing job is returned as a new one",
        "job.is_duplicate, job.enqueued_on = True, alias",
        "job.enqueued_on = alias",
        inside="_existing",
    ),
    Mutant(
        "new jobs with keys wake nobody",
        "    inserting.announce(connection, ((job_id, job.row) for job_id, job in announced.items()))\n",
        "",
        inside="insert_keyed",
    ),
)
PERIODS = of_tests(
    (
        "tests/concurrency/test_uniqueness_windows.py",
        "tests/test_unique.py",
        "tests/worker/test_pruner.py",
        "tests/test_plans.py",
    ),
    Mutant(
        "a held key is taken",
        HELD,
        "WHERE true OR pgqueue_uniqueness_window.ends_at <= statement_timestamp()",
        "ENQUEUE_FOR_PERIOD",
    ),
    Mutant(
        "a key is held for ever",
        HELD,
        "WHERE false AND statement_timestamp() <= statement_timestamp()",
        "ENQUEUE_FOR_PERIOD",
    ),
    Mutant(
        "a key that is taken anew stays the former job's",
        "SET job_id = excluded.job_id, ",
        "SET ",
        "ENQUEUE_FOR_PERIOD",
    ),
    Mutant("a key that is taken anew is not held", ", ends_at = excluded.ends_at\n", "\n", "ENQUEUE_FOR_PERIOD"),
    Mutant("whoever asks has a job", " OR id IN (SELECT job_id FROM opened)", " OR true", "ENQUEUE_FOR_PERIOD"),
    Mutant("a call without a key has no job", "WHERE key IS NULL OR id", "WHERE id", "ENQUEUE_FOR_PERIOD"),
    Mutant("a running job takes a later call", " AND state = 'ready'\n", "\n", "REPLACE_FOR_PERIOD"),
    Mutant(
        "what is over is held",
        "          ends_at > statement_timestamp()",
        "          statement_timestamp() <= statement_timestamp()",
        "OPEN_WINDOWS",
    ),
    Mutant(
        "what is held is forgotten",
        "    WHERE ends_at <= statement_timestamp()",
        "    WHERE statement_timestamp() <= statement_timestamp()",
        "PRUNE_WINDOWS",
    ),
    Mutant("to forget waits for who takes it anew", *NOT_SKIPPED, "PRUNE_WINDOWS"),
    Mutant(
        "of a period the last call counts",
        "jobs if replaces else reversed(jobs)",
        "jobs",
        inside="_add_many_for_period",
    ),
    Mutant(
        "the job of a uniqueness window is not looked for again",
        "if existing_job is None and is_for_period:",
        "if False:",
        inside="_insert_unique",
    ),
    Mutant(
        "a throttled call changes nothing",
        "if not added and replaces:",
        "if False:",
        inside="_add_one",
    ),
)
PAUSES = of_tests(
    (
        "tests/concurrency/test_pauses.py",
        "tests/test_control.py",
        "tests/worker/test_fetcher.py",
        "tests/process/test_pauses.py",
    ),
    Mutant("a claim ignores paused names", f"          AND{PAUSED_NAMES}", "", "CLAIM"),
    Mutant("the next in line may be paused", f"      AND{PAUSED_NAMES}", "", "NEXT_IN_LINE"),
    Mutant(
        "a pause does not end by itself",
        "paused_until > statement_timestamp() + %(time_shift)s::interval)\n)",
        "paused_until IS NOT NULL)\n)",
        "LANES",
    ),
    Mutant("a task's name pauses a queue", "WHERE kind = 'queue' AND name", "WHERE name", "LANES"),
    Mutant(
        "each telling begins a pause anew",
        "WHEN pgqueue_pause.paused_until <= excluded.paused_at",
        "WHEN true",
        "PAUSE",
    ),
    Mutant("one without an end was none", "WHERE paused_until IS NULL OR ", "WHERE ", "RESUME"),
    Mutant("pauses that last are forgotten", "- make_interval(", "+ make_interval(", "PRUNE_PAUSES"),
    Mutant("a paused queue is due", "max(due, resumes or due)", "due", inside="scan_lanes"),
    Mutant(
        "a task is paused under one name",
        "for name in registry.names_of(task_name)]",
        "for name in [task_name]]",
        inside="Lanes._scan_plain",
    ),
    Mutant(
        "a drain trusts its first look",
        ") or time.monotonic() < began + OBEY_SECONDS:",
        "):",
        inside="_wait_until_none",
    ),
    Mutant(
        "a resume does not notify the workers",
        "PAUSES_CHANGED)\n    return any",
        "'')\n    return any",
        inside="resume_named",
    ),
    Mutant(
        "a clear reads the first page only",
        "            cursor = rows[-1].position\n            yield",
        "            is_last = True\n            yield",
        inside="bulk_selection.waiting_jobs",
    ),
    Mutant(
        "a clear stops what runs",
        "job_operations.cancel(jobs, running=False)",
        "job_operations.cancel(jobs, running=True)",
        inside="control.queues._clear",
    ),
    Mutant("a former name's pause stays", "names_of(kind, name)[1:]", "()", inside="control.queues._pause"),
    Mutant(
        "announced jobs wait for the next scan",
        "room if self.lanes.is_resting else 1",
        "1",
        inside="Fetcher._claim_before_scan",
    ),
    Mutant(
        "no word makes a worker look", "if PAUSES_CHANGED in payloads:", "if not payloads:", inside="Fetcher._sleep"
    ),
    Mutant("an announced job is taken past a pause", "        self._recent.clear()\n", "", inside="Lanes.scan_again"),
)
CANCELLING = of_tests(
    (
        "tests/worker/test_lease_monitor.py",
        "tests/worker/test_attempt.py",
        "tests/worker/test_fetcher.py",
        "tests/worker/test_slots.py",
        "tests/process/test_cancelling.py",
    ),
    Mutant("all that runs is to be cancelled", "WHERE mine.cancel_requested_at IS NOT NULL\n", "", "CANCEL_REQUESTS"),
    Mutant(
        "the word of a cancellation is not passed on",
        "for payload in payloads & self._on_requests.keys():",
        "for payload in set[str]():",
        inside="Fetcher._sleep",
    ),
    Mutant(
        "no running job gets a request to cancel",
        "self.pool.ask_to_cancel(requested)",
        "set()",
        inside="LeaseMonitor._handle_requests",
    ),
    Mutant(
        "prefetched jobs are not released",
        "self.in_flight.take(requested)",
        "[]",
        inside="LeaseMonitor._handle_requests",
    ),
    Mutant(
        "a word during a look is lost",
        "            if poll_again:\n",
        "            if False:\n",
        inside="LeaseMonitor._poll_requests",
    ),
    Mutant(
        "nobody looks without a word",
        "(self._must_poll or not self._listens)",
        "self._must_poll",
        inside="LeaseMonitor.tick",
    ),
    Mutant(
        "who cleans up is stopped again", "if execution_id in self._late:", "if False:", inside="Deadlines.add_cancel"
    ),
    Mutant(
        "who stays is never given up",
        "            self._late.setdefault(execution_id, now + STAY_SECONDS)",
        "            pass",
        inside="Deadlines._stop_due",
    ),
    Mutant("a lost lease is told as a cancellation", " and not attempt.interrupted:\n", ":\n", inside="_report_of"),
    Mutant(
        "a context does not tell",
        "asked_to_cancel=attempt.was_asked",
        "asked_to_cancel=lambda: False",
        inside="context_of",
    ),
)
EXPIRY = of_tests(
    ("tests/test_expiry.py", "tests/concurrency/test_expiry.py", "tests/test_states.py", "tests/test_stateful.py"),
    Mutant("what runs expires", "    WHERE state = 'ready'\n      AND expires_at", "    WHERE expires_at", "EXPIRE"),
    Mutant("what has time expires", "AND expires_at <= ", "AND expires_at > ", "EXPIRE"),
    Mutant("EXPIRE waits for locked rows", *NOT_SKIPPED, "EXPIRE"),
    Mutant("a late start is none", "self.started_at > start_by", "False", inside="Attempt._check_expiry"),
    Mutant("a start in time is late", "self.started_at > start_by", "True", inside="Attempt._check_expiry"),
    Mutant("a retried job expires", ", expires_at = NULL", "", "RETRY"),
    Mutant("an age is no age", "=> %(expires_seconds)s", "=> 0 * %(expires_seconds)s", "ENQUEUE"),
    Mutant("of many, an age is no age", "=> %(expires_seconds)s", "=> 0 * %(expires_seconds)s", "ENQUEUE_MANY"),
    Mutant("a time to start by is of another clock", "sent_at + job.start_by", "job.start_by", inside="received"),
)
PROGRESS = of_tests(
    (
        *("tests/worker/test_progress_writer.py", "tests/test_progress.py", "tests/test_states.py"),
        *("tests/concurrency/test_races.py", "tests/process/test_progress.py"),
    ),
    Mutant("a closed attempt's word counts", " AND execution.outcome IS NULL\n", "\n", "NOTE_PROGRESS"),
    Mutant("progress waits for a locked row", "job SKIP LOCKED", "job", "NOTE_PROGRESS"),
    Mutant(
        "an older word takes a later one's place",
        "self.setdefault(key, value)",
        "self[key] = value",
        inside="Unwritten._put_back",
    ),
    Mutant(
        "what was locked is lost",
        "self._put_back({key: taken[key] for key in locked})",
        "pass",
        inside="Unwritten.write",
    ),
    Mutant(
        "a lost connection loses the word",
        "                self._put_back(taken)\n                raise",
        "                raise",
        inside="Unwritten.write",
    ),
    Mutant(
        "no second look before sleep",
        "            if not self:\n                return",
        "            if True:\n                return",
        inside="Notes.due_in_seconds",
    ),
    Mutant(
        "each step is a message",
        "if now - self._sent_at >= SEND_INTERVAL_SECONDS:",
        "if True:",
        inside="ProgressSender.note",
    ),
    Mutant(
        "each word is a statement",
        "            self._written_at = time.monotonic()\n",
        "            pass\n",
        inside="Notes.write",
    ),
    Mutant("each word wakes", "        if not self._is_announced:", "        if True:", inside="Notes._announce"),
    Mutant(
        "a success is gone on from",
        "progress_done = CASE WHEN fit.state <> 'succeeded'",
        "progress_done = CASE WHEN true",
        "RETRY",
    ),
    Mutant(
        "an error in the log is enough to lose all",
        "if isinstance(error, TRANSIENT):",
        "if False:",
        inside="Unwritten.write",
    ),
)
KEPT_LOGS = of_tests(
    ("tests/worker/test_kept_logs.py", "tests/worker/test_progress_writer.py"),
    Mutant("every line is kept", "record.levelno >= current.level", "True", inside="RecordingFactory.__call__"),
    Mutant("the worker's own lines are kept", "and not _is_own(record.name)", "", inside="RecordingFactory.__call__"),
    Mutant("the last lines are not kept", "self._last.append(line)", "pass", inside="LogBuffer.add"),
    Mutant("the last lines have no limit", "while kept and room > 0:", "while kept:", inside="LogBuffer.content"),
    Mutant(
        "the lines of another claim are replaced",
        "          AND floor(1000 * date_part('epoch', execution.claimed_at)) = given.claimed_ms\n",
        "",
        "KEEP_LOGS",
    ),
    Mutant(
        "the lines of a job that exists are removed",
        "    WHERE (SELECT true FROM pgqueue_execution AS execution WHERE execution.id = page.execution_id) IS NULL\n",
        "",
        "PRUNE_LOGS",
    ),
)
WAITS = of_tests(
    ("tests/test_waiting.py",),
    Mutant("an operator's retry is the end", "return job.state in FINISHED", "return True", inside="_is_over"),
    Mutant("a wait in vain is allowed", "        if is_first:\n", "        if False:\n", inside="_is_over"),
    Mutant(
        "the error of the first attempt is returned", 'order_by("-id")', 'order_by("id")', inside="result_wait._result"
    ),
    Mutant("no look at the end of the time", "    yield 0.0\n", "", inside="_pauses"),
    Mutant(
        "what nobody sees is waited for",
        "return bool(operator.existing(connection, [job.pk]))",
        "return True",
        inside="_others_see",
    ),
    Mutant(
        "it looks as often as at first",
        "min(pause_seconds * GROWTH, LONGEST_PAUSE_SECONDS)",
        "pause_seconds",
        inside="_pauses",
    ),
    Mutant(
        "a job may wait for another",
        "(own_job := running_job.get()) is not None",
        "(own_job_id := None)",
        inside="_refuse_useless_wait",
    ),
    Mutant(
        "a cancelled job has failed",
        "kind = JobCancelled if cancelled else JobFailed",
        "kind = JobFailed",
        inside="result_wait._result",
    ),
)
AROUND = of_tests(
    ("tests/test_middleware.py", "tests/process/test_middleware.py"),
    Mutant(
        "an error may take a final word's place",
        "(raised is None or is_final)",
        "raised is None",
        inside="_raise_final",
    ),
    Mutant(
        "a lost lease may be replaced",
        "class LeaseLost(BaseException)",
        "class LeaseLost(Exception)",
        inside="LeaseLost",
    ),
    Mutant("what is swallowed is gone", "(raised is None or is_final)", "is_final", inside="_raise_final"),
    Mutant(
        "the last is outermost",
        "paths = get_settings().MIDDLEWARE",
        "paths = get_settings().MIDDLEWARE[::-1]",
        inside="middleware.chain",
    ),
    Mutant("a task's own headers are changed", "dict(task.headers or {})", "(task.headers or {})", inside="row_of"),
    Mutant("made anew for each job", "@cache\ndef chain", "def chain", inside="middleware.chain"),
    Mutant(
        "coroutines have the way of functions",
        'getattr(instance, "arun", None) or instance.run',
        "instance.run",
        inside="middleware.chain",
    ),
)
RINGS = of_tests(
    ("tests/worker/test_waker.py",),
    Mutant(
        "a new connection wakes nobody",
        "= connections, connection\n        super().wake()",
        "= connections, connection",
        inside="NotificationWaker.opened",
    ),
    Mutant(
        "what was sent before is not assumed",
        "        self._miss_notifications()\n\n    def read",
        "        pass\n\n    def read",
        inside="NotificationWaker",
    ),
    Mutant(
        "payloads stay",
        "payloads, self._payloads = self._payloads, set()",
        "payloads = self._payloads",
        inside="NotificationWaker.wait_for_notifications",
    ),
    Mutant("payloads are not heard", "self._payloads.add(payload)", "pass", inside="NotificationWaker._record"),
    Mutant("a loss is not reported", "            self.error = error\n", "", inside="NotificationWaker._read_here"),
    Mutant(
        "the wait for a return is a busy loop",
        "        self._awaits_return = True\n        try",
        "        try",
        inside="NotificationWaker._read_if_free",
    ),
    Mutant(
        "a return between the attempt and the wait wakes nobody",
        "                self._connections.use_first_if_free(self._read_here)",
        "                self._awaits_return = False\n"
        "                self._awaits_return = not self._connections.use_first_if_free(self._read_here)",
        inside="NotificationWaker._read_if_free",
    ),
    Mutant(
        "a return wakes nobody",
        "            self._awaits_return = False\n            super().wake()",
        "            self._awaits_return = False",
        inside="NotificationWaker.after_return",
    ),
    Mutant(
        "a notification with an answer is dropped",
        "        connection.pgconn.notify_handler = self._receive\n",
        "",
        inside="NotificationWaker.opened",
    ),
    Mutant(
        "a notification with an answer wakes nobody",
        "        if self._record(notification):\n            super().wake()",
        "        self._record(notification)",
        inside="NotificationWaker._receive",
    ),
    Mutant(
        "what libpq has read stays there",
        "        with suppress(psycopg.Error):  # it is closed\n            self._read_buffered(connection)",
        "        pass",
        inside="NotificationWaker.before_return",
    ),
    Mutant(
        "a slow statement hides notifications",
        "        connection.on_wait = self._miss_notifications\n",
        "",
        inside="NotificationWaker.expect_notifications",
    ),
    Mutant(
        "the return of a connection ends the sleep",
        "            if payloads or is_woken or",
        "            if True or payloads or is_woken or",
        inside="NotificationWaker.wait_for_notifications",
    ),
    Mutant(
        "a closed connection is not replaced",
        "connection.closed:\n            self._on_change()",
        "connection.closed:\n            pass",
        inside="NotificationWaker.after_return",
    ),
    Mutant(
        "the self-test uses the main channel",
        'SELF_TEST: Final = "pgqueue_self_test"',
        'SELF_TEST: Final = "pgqueue"',
        inside="SELF_TEST",
    ),
    Mutant(
        "the listener waits for the second connection while it uses the first",
        "with self.second.use_if_free() as other:",
        "with self.second.use() as other:",
        inside="Listener._send",
    ),
    Mutant(
        "an error of the second connection closes the first",
        "except (ConnectionInUse, psycopg.Error, OSError) as error:",
        "except (ConnectionInUse, OSError) as error:",
        inside="Listener._send",
    ),
    Mutant(
        "each tick listens again",
        "            if connection is self._heard_on:\n",
        "            if False:\n",
        inside="Listener.tick",
    ),
    Mutant(
        "a flood is read to its end",
        "            self.is_flooded = True\n",
        "            pass\n",
        inside="NotificationWaker._look_for_flood",
    ),
    Mutant(
        "a flood goes on arriving",
        '        connection.execute("UNLISTEN *", prepare=False)\n',
        "",
        inside="Listener._stop_listening",
    ),
    Mutant("no rest after a flood", "        if rest_seconds > 0:\n", "        if False:\n", inside="Listener.tick"),
    Mutant(
        "the name says that it still listens",
        "        self._set_name(connection)\n",
        "",
        inside="Listener._stop_listening",
    ),
    Mutant(
        "a second wake-up is lost",
        "        self._is_woken = False  # after",
        "        pass  # after",
        inside="Waker.wait",
    ),
)
CONNECTIONS = of_tests(
    ("tests/worker/test_shared_connections.py",),
    Mutant(
        "a connection is lent twice",
        "            if link not in self._used:\n",
        "            if True:\n",
        inside="SharedConnections._free_for",
    ),
    Mutant(
        "maintenance and schedules use both connections",
        "        if share.is_background:\n            self._has_background = True\n",
        "",
        inside="SharedConnections._grant_free",
    ),
    Mutant(
        "an interrupted service keeps its connection",
        "            self.end(self)\n            raise",
        "            raise",
        inside="_Turn.__enter__",
    ),
    Mutant(
        "an interrupted service stays in the queue",
        "            if turn in self._waiting:\n                self._waiting.remove(turn)\n",
        "            pass\n",
        inside="SharedConnections.end",
    ),
    Mutant(
        "the last one to wait is the first",
        "in list(self._waiting)",
        "in self._waiting[::-1]",
        inside="SharedConnections.give_back",
    ),
    Mutant(
        "any use keeps the second open",
        "(share.preference is not Preference.OPEN or",
        "(True or",
        inside="SharedConnections._grant_free",
    ),
    Mutant(
        "the need because of the other does not count",
        " or self._first in self._used)",
        ")",
        inside="SharedConnections._grant_free",
    ),
    Mutant(
        "the first use is the only one",
        "max(self._first.restored_at, self._second",
        "max(0.0, self._second",
        inside="SharedConnections.connected_at",
    ),
    Mutant(
        "a waiting service counts as stuck",
        "        restart_time_limit()  # of",
        "        # of",
        inside="SharedConnections.take",
    ),
    Mutant(
        "to open again counts as a loss",
        "            self._is_lost, self.restored_at = False,",
        "            self.restored_at =",
        inside="Link._open",
    ),
    Mutant(
        "an outage without a connection is no loss",
        "        except BaseException as error:\n            self._is_lost = True\n",
        "        except BaseException as error:\n",
        inside="Link._open",
    ),
)
BLOCKING = of_tests(
    (
        *("tests/worker/test_background_log.py", "tests/worker/test_supervision.py"),
        *("tests/process/test_application_code.py", "tests/process/test_output.py"),
    ),
    Mutant(
        "engine threads call log handlers",
        "        self._records.put(record)\n        return False",
        "        return True",
        inside="BackgroundLog.filter",
    ),
    Mutant(
        "a log handler ends the log's thread",
        "suppress(BaseException):\n        logging",
        "suppress():\n        logging",
        inside="call_handlers",
    ),
    Mutant("the supervisor calls log handlers", "        self.install()\n", "", inside="LogProcess.start"),
    Mutant(
        "a settlement that hangs is waited for",
        "        return time.monotonic() - self.began_at > (write",
        "        return time.monotonic() - self.began_at > 1e9 + (write",
        inside="DeadProcesses.is_overdue",
    ),
    Mutant(
        "a broken backoff is asked again",
        "            self._without_application += left\n",
        "",
        inside="Settlement.reaped",
    ),
    Mutant(
        "nobody watches the end of the leases",
        "        if must_kill_worker(process_state):",
        "        if False:",
        inside="_main",
    ),
    Mutant(
        "a process killed at the end of its leases is charged",
        "            process_state.exit_reason = ExitReason.LEASE_LOST\n",
        "",
        inside="_main",
    ),
    Mutant(
        "exit functions do not run",
        "        atexit._run_exitfuncs()",
        "        pass",
        inside="exit_functions._run",
    ),
    Mutant(
        "exit functions have no deadline",
        "runner.join(seconds)",
        "runner.join()",
        inside="_returns",
    ),
    Mutant(
        "nobody waits for isolated processes",
        "        self.ending_processes.wait()\n",
        "        pass\n",
        inside="Pool.close_isolated_processes",
    ),
    Mutant(
        "jobs' signals end the process",
        "signal.signal(number, _survive)",
        "pass",
        inside="survive_signals",
    ),
)
INTERRUPTING = of_tests(
    ("tests/worker/test_interruption.py",),
    Mutant(
        "a with statement may be interrupted",
        "    return not _enters_with(frame)",
        "    return True",
        inside="may_interrupt",
    ),
    Mutant(
        "an acquiring function may be interrupted",
        "if function in TAKES_OR_RELEASES:",
        "if False:",
        inside="may_interrupt",
    ),
    Mutant(
        "a waiting thread may not be interrupted",
        "        return function in WAITS",
        "        return False",
        inside="may_interrupt",
    ),
)
FRONT_DOOR = of_tests(
    ("tests/test_enqueue_on_commit.py", "tests/test_mistaken_calls.py", "tests/test_options.py"),
    Mutant(
        "a job does not wait for a commit elsewhere",
        "if elsewhere is None:",
        "if True:",
        inside="run_after_commits_elsewhere",
    ),
    Mutant(
        "a job waits for one commit of two",
        "partial(run_after_commits_elsewhere, alias, function)",
        "function",
        inside="run_after_commits_elsewhere",
    ),
    Mutant("another missing table is ours", ' and "pgqueue_" in str(error)', "", inside="statements._run_on_django"),
    Mutant(
        "None resets nothing",
        "(value is not None or name in RESET_BY_NONE)",
        "value is not None",
        inside="changed_options",
    ),
    Mutant("None resets everything", "(value is not None or name in RESET_BY_NONE)", "True", inside="changed_options"),
)
FEATURES = [
    *SCHEDULES, *TICKS, *UNIQUE, *PERIODS, *PAUSES, *CANCELLING, *EXPIRY, *PROGRESS, *KEPT_LOGS, *WAITS, *AROUND,
    *RINGS, *CONNECTIONS, *BLOCKING, *INTERRUPTING, *FRONT_DOOR,
]  # fmt: skip
