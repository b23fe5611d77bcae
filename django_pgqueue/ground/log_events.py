"""The names and the fields of the log records that the package writes about jobs and workers.

Each call of a logger passes `extra=event(…)` or `extra=job_event(…)`. The names and fields are stable: log pipelines
and alerts depend on them. The messages may change. The reference page is written from `EVENTS`, and a test compares the
calls with it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, Protocol

JOB_FIELDS: Final = ("job_id", "execution_id", "task", "queue", "attempt")
"""The fields of a record about one attempt."""
RAN: Final = (*JOB_FIELDS, "duration_seconds")


class Event(NamedTuple):
    """One kind of log record."""

    level: str
    """The level, or the levels separated by " or "."""
    meaning: str
    """One sentence that describes the record."""
    fields: tuple[str, ...] = ()
    """Further fields of the record. Their values are strings, numbers or None."""


class LoggedJob(Protocol):
    """An attempt at a job, such as a claimed job or an open execution."""

    @property
    def job_id(self) -> int:
        """Id of the job."""

    @property
    def execution_id(self) -> int:
        """Id of the execution."""

    @property
    def task_name(self) -> str | None:
        """Name of the task."""

    @property
    def queue_name(self) -> str:
        """Queue of the job."""

    @property
    def attempt(self) -> int:
        """Number of the attempt."""


EVENTS: Final[dict[str, Event]] = {
    # Jobs
    "job_started": Event("DEBUG", "An attempt has started.", JOB_FIELDS),
    "job_succeeded": Event("INFO", "The job has succeeded.", RAN),
    "job_cancelled": Event("INFO", "The job was cancelled.", RAN),
    "job_snoozed": Event("INFO", "The task has snoozed the job.", (*RAN, "delay_seconds")),
    "job_suspended": Event("INFO", "A durable step has suspended the job.", (*RAN, "delay_seconds")),
    "job_released": Event("DEBUG", "The job was released: its attempt does not count.", RAN),
    "job_failed": Event("WARNING or ERROR", "The attempt has failed.", (*RAN, "exception_class", "retry_seconds")),
    "steps_not_called": Event(
        "WARNING", "A job has ended, and its code does not call some of its stored steps.", (*JOB_FIELDS, "steps")
    ),
    "job_dead": Event("ERROR", "The job is dead.", (*RAN, "exception_class")),
    "job_crashed": Event("WARNING", "The process or the worker of an attempt was lost.", (*JOB_FIELDS, "state")),
    "job_abandoned": Event("ERROR", "A job has not stopped in time. Its slot is used again.", JOB_FIELDS),
    "abandoned_job_ended": Event("WARNING", "An abandoned job has ended. Its result does not count.", JOB_FIELDS),
    "writes_lost": Event(
        "ERROR",
        "A task returned while a transaction was open. Its writes were rolled back, but its job could not be failed.",
        JOB_FIELDS,
    ),
    "job_refused": Event("WARNING or ERROR", "The database refused to change one job.", ("job_id", "reason")),
    "jobs_kept": Event("WARNING", "Jobs were not deleted, because unfinished work needs them.", ("count", "reason")),
    "batch_kept": Event("WARNING", "A batch was not deleted, because it has jobs or nested batches.", ("batch_id",)),
    "row_refused": Event(
        "ERROR",
        "The database refused to write one row. It is tried again. `subject` says what was to be done.",
        ("subject", "row_id", "reason"),
    ),
    "duty_failed": Event(
        "ERROR", "A duty of the maintenance has failed. The other duties go on.", ("duty", "retry_seconds")
    ),
    "duty_recovered": Event("INFO", "A duty of the maintenance that had failed works again.", ("duty",)),
    "rows_left": Event(
        "WARNING",
        "Rows were left to a later write, because the database refuses others of the same write slowly. Once a minute.",
        ("subject", "reason"),
    ),
    "task_unknown": Event(
        "WARNING", "A job is released because this worker cannot run its task. Once a minute per task.", JOB_FIELDS
    ),
    "throttled_without_limit": Event(
        "WARNING", "A job without a limit has raised `Throttled`. Once per task and process.", JOB_FIELDS
    ),
    "job_not_admitted": Event(
        "INFO", "The limit of a job does not admit it in immediate mode: a worker runs it.", ("job_id", "reason")
    ),
    "breaker_opened": Event(
        "WARNING",
        "Attempts of a limit key have failed: its circuit breaker has paused it. Of the key's value, it has a digest.",
        ("limit_key", "pause_seconds", "reason"),
    ),
    "breaker_probed": Event(
        "INFO", "A job of a limit key was claimed to probe an open circuit breaker.", ("limit_key", "job_id")
    ),
    "breaker_closed": Event(
        "INFO", "A job has succeeded: the circuit breaker of its limit key is closed.", ("limit_key",)
    ),
    "breaker_counts_refused": Event("WARNING", "The database refuses counts of circuit breakers.", ("count",)),
    "no_isolated_process": Event("WARNING", "A job is released because no process could be started.", JOB_FIELDS),
    "event_loop_blocked": Event("WARNING", "A job is released because its event loop is blocked.", JOB_FIELDS),
    "result_discarded": Event("WARNING", "Another process has closed the execution of a result.", JOB_FIELDS),
    "commit_reply_lost": Event("WARNING", "The reply to the COMMIT of an atomic task was lost.", JOB_FIELDS),
    "on_commit_failed": Event("ERROR", "A function that an atomic task registered has failed.", JOB_FIELDS),
    "job_cleanup_failed": Event("ERROR", "Cleaning up after a job has failed.", JOB_FIELDS),
    "leak_found": Event("WARNING", "A task has changed its process.", ("task", "leak")),
    "event_loop_failed": Event("ERROR", "The event loop cannot start a job. A new loop replaces it.", JOB_FIELDS),
    "event_loop_replaced": Event("ERROR", "An event loop was blocked or broken. A new loop replaces it.", ("pid",)),
    "event_loop_interrupted": Event("ERROR", "A subtask has stopped the event loop, which is started again."),
    "query_not_cancelled": Event("WARNING", "A query of a stopped job could not be cancelled."),
    # Batches of jobs
    "claim_divided": Event("WARNING", "A claim failed, perhaps because of one row. Jobs are claimed one by one."),
    "executions_lost": Event("WARNING", "Executions belong to another worker now. They are interrupted.", ("count",)),
    "executions_unknown": Event("WARNING", "Open executions that nothing runs are released.", ("count",)),
    "leases_ending": Event("ERROR", "The leases cannot be extended. All jobs are interrupted.", ("left_seconds",)),
    "results_refused": Event("ERROR", "The database refuses results. They are tried again.", ("count",)),
    "progress_refused": Event("WARNING", "The database refuses progress. It is dropped.", ("count",)),
    "log_lines_refused": Event("WARNING", "The database refuses kept log lines. They are dropped.", ("count",)),
    "jobs_interrupted": Event("WARNING", "Jobs still run after the grace period. They are released.", ("count",)),
    "jobs_not_released": Event(
        "WARNING", "Jobs were not released at the stop. The supervisor releases them.", ("count",)
    ),
    "bulk_act_ended": Event("INFO", "A worker has ended a bulk act.", ("audit_id", "action", "outcome")),
    "end_check_refused": Event(
        "WARNING", "The database refused the end of a batch, a job of a workflow or a compensation.", ("check", "id")
    ),
    "end_checks_refused": Event(
        "WARNING", "The database refused to look for what follows the ends of jobs.", ("check", "count")
    ),
    "jobs_pruned": Event("INFO", "Finished jobs past their retention were removed.", ("count",)),
    "many_lanes": Event("INFO", "More pairs of queue and priority have ready jobs than one scan reads.", ("count",)),
    # Schedules
    "schedule_fired": Event("INFO", "A schedule has enqueued a job.", ("schedule", "job_id")),
    "schedule_skipped": Event("INFO", "A tick of a schedule has enqueued no job.", ("schedule", "reason")),
    "schedule_changed": Event("INFO", "A schedule has the definition of this worker's code now.", ("schedule",)),
    "schedule_failed": Event("WARNING or ERROR", "A schedule cannot run here.", ("schedule", "reason")),
    "schedules_off": Event("WARNING", "The worker fires no schedules, because its role lacks privileges."),
    # Operators
    "search_without_arguments": Event(
        "INFO",
        "A user has searched for a value of a search key, without the permission to view arguments.",
        ("user", "search_key"),
    ),
    # Workers and their processes
    "worker_requested": Event(
        "INFO", "A worker process answers the request of an operator.", ("worker_id", "kind", "by")
    ),
    "process_ready": Event("INFO", "A worker process is ready.", ("worker_id", "pid")),
    "process_retiring": Event("INFO", "A worker process ends after its running jobs.", ("worker_id", "reason")),
    "process_retires_later": Event("INFO", "A worker process waits to be replaced.", ("worker_id",)),
    "process_replaced": Event("INFO", "A worker process has ended and is replaced.", ("pid",)),
    "process_exited": Event("INFO or CRITICAL", "A worker process has exited to protect its jobs.", ("pid", "reason")),
    "process_died": Event("ERROR", "A worker process has died.", ("pid", "reason")),
    "process_stuck": Event("ERROR or CRITICAL", "A worker process is stuck and exits.", ("pid", "reason")),
    "process_killed": Event("ERROR", "The supervisor has killed a worker process.", ("pid", "reason")),
    "process_failed": Event("ERROR", "A worker process has failed."),
    "slot_thread_died": Event("ERROR", "The thread of a slot has died and is replaced.", ("slot",)),
    "service_failed": Event("ERROR", "A service has failed and is tried again.", ("service",)),
    "supervisor_failed": Event("ERROR", "A step of the supervisor has failed and is tried again."),
    "supervisor_ended": Event(
        "WARNING or ERROR",
        "The supervisor of one of several databases has ended, so the whole worker stops.",
        ("database", "reason"),
    ),
    "leak_check_failed": Event("ERROR", "The search for leaks has failed."),
    "settlement_interrupted": Event("ERROR", "A process that requeues jobs was interrupted."),
    "worker_stopping": Event("WARNING", "A signal to stop has arrived.", ("signals",)),
    "signal_ignored": Event("WARNING", "A worker process has ignored a signal.", ("signal",)),
    "database_awaited": Event("WARNING", "The worker waits for the database to be ready.", ("reason",)),
    "database_outage": Event("WARNING", "The database does not answer.", ("service", "reason")),
    "database_outage_over": Event("WARNING", "The database answers again.", ("outage_seconds",)),
    "foreign_database": Event("WARNING or ERROR", "The database belongs to another installation.", ("reason",)),
    "notifications_flood": Event("WARNING", "Too many notifications arrive. The worker polls for a while instead."),
    "notifications_missing": Event("WARNING", "Notifications do not arrive. The worker polls instead."),
    "queue_unused": Event("WARNING", "A queue in --queues or --queue is probably mistyped."),
    "health_file_failed": Event("WARNING", "The health file cannot be written."),
    "metrics_failed": Event("WARNING or ERROR", "A page of the metrics port has failed, or its process."),
    "systemd_not_notified": Event("WARNING", "The worker could not notify systemd."),
    "log_records_dropped": Event("WARNING", "Log handlers were too slow, so records were dropped.", ("count",)),
    # Remote workers
    "remote_request_failed": Event("WARNING", "The server could not answer a remote worker: the database has failed."),
    "remote_server_unavailable": Event("WARNING", "The server does not answer a remote worker, which tries again."),
    "remote_worker_refused": Event("ERROR", "The server refuses a remote worker, which stops."),
    "remote_worker_worn": Event("ERROR", "A remote worker stops, because it has abandoned jobs."),
    "remote_stop_unsent": Event("WARNING", "A remote worker could not inform the server that it stops."),
    # Code of the application
    "receiver_failed": Event("ERROR", "A signal receiver has raised an exception."),
    "receiver_hangs": Event("ERROR", "A signal receiver has not returned and is abandoned.", ("receiver",)),
    "receivers_late": Event("ERROR", "The receivers of a signal about a process have not returned."),
    "signals_dropped": Event("ERROR", "Signals were not sent.", ("count",)),
    "backoff_failed": Event("ERROR", "A backoff has raised an exception. The default is used.", ("task",)),
    "log_line_failed": Event("ERROR", "A log line about a job could not be written.", ("job_id",)),
}


def event(name: str, **fields: Any) -> dict[str, Any]:
    """Return the `extra` of a log record: the event's name and its fields."""
    return {"event": name, **fields}


def job_event(name: str, job: LoggedJob, **fields: Any) -> dict[str, Any]:
    """Return the `extra` of a log record about one attempt."""
    return {"event": name, **job_fields(job), **fields}


def job_fields(job: LoggedJob) -> dict[str, Any]:
    """Return the values of `JOB_FIELDS` for an attempt."""
    return {
        "job_id": job.job_id,
        "execution_id": job.execution_id,
        "task": job.task_name,
        "queue": job.queue_name,
        "attempt": job.attempt,
    }
