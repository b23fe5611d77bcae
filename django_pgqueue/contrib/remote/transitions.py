"""Register remote workers, extend their leases, and write how their executions ended.

The views call these functions in a thread of the engine. All state changes through the transitions of `lifecycle`, and
through the writer of local workers, so retries, dead letters, results, signals and waiting applications are the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

import django_pgqueue
from django_pgqueue import signals
from django_pgqueue.encoding import codecs
from django_pgqueue.ends.end_check import Reactor
from django_pgqueue.ends.end_checks import EndChecks
from django_pgqueue.exceptions import CannotDecode, Dead
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.envelope import is_envelope
from django_pgqueue.lifecycle import completions, leases, workers
from django_pgqueue.lifecycle.types import Claimed, Noted, TransitionResult
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker.completion.unwritten import FORMS, ReportEvidence, in_form
from django_pgqueue.worker.completion.writer import Finished, finish, release_executions
from django_pgqueue.worker.execution import retry_policy
from django_pgqueue.worker.execution.error_text import class_path
from django_pgqueue.worker.execution.failure import POSTPONED_SECONDS
from django_pgqueue.worker.execution.job_events import Events, start_of
from django_pgqueue.worker.execution.report import EXPIRED, Report
from django_pgqueue.worker.execution.stored_values import (
    DependencyUnfinished,
    DoesNotFit,
    arguments_with_results,
    read_call,
)

from .handles import ExecutionHandle, WorkerHandle

if TYPE_CHECKING:
    from collections.abc import Mapping

    from django_pgqueue.db.engine_connection import EngineConnection
    from django_pgqueue.ground.progress import Progress
    from django_pgqueue.reactions import Reactions

LOCKED_SECONDS: Final = 2.0
"""How long a completion is retried while another session, such as one that cancels the job, has its rows locked."""
LOCKED_PAUSE_SECONDS: Final = 0.01

evidence: Final = ReportEvidence()
"""Which refused reports are to blame, by what this process has written."""
_heartbeats: dict[int, float] = {}
"""When this process last recorded a heartbeat of each worker, by the monotonic clock."""


def register(connection: EngineConnection, worker: WorkerHandle) -> WorkerHandle:
    """Record a remote worker as a worker with an id of its own. An id other than 0 is kept.

    Two workers that register in the same microsecond would get one id; then the second tries again.
    """
    for is_last in (False, False, True):
        try:
            worker_id = workers.register_worker(
                connection,
                hostname=worker.name,
                pid=worker.pid,
                version=f"{django_pgqueue.__version__} (remote)"[:50],
                queue_names=worker.queue_names,
                concurrency=worker.concurrency,
                worker_id=worker.worker_id or None,
            )
            break
        except psycopg.errors.UniqueViolation:
            if is_last:
                raise
    return worker._replace(worker_id=worker_id)


def record_heartbeat(connection: EngineConnection, worker: WorkerHandle) -> None:
    """Record a heartbeat, unless the last one is recent. Register the worker again if its record was removed."""
    now = time.monotonic()
    if now - _heartbeats.get(worker.worker_id, float("-inf")) < get_settings().heartbeat_seconds:
        return
    if worker.worker_id not in leases.extend(connection, [worker.worker_id], lease_seconds=None):
        register(connection, worker)
    _heartbeats[worker.worker_id] = now
    for known, recorded_at in list(_heartbeats.items()):
        if now - recorded_at > get_settings().LEASE:
            _heartbeats.pop(known, None)


def stop(connection: EngineConnection, worker: WorkerHandle, reactions: Reactions) -> None:
    """Record that a worker has stopped, and release the executions that it left open."""
    release_executions(connection, leases.open_executions(connection, worker.worker_id), reactions)
    workers.unregister_worker(connection, worker.worker_id)


class Prepared(NamedTuple):
    """A claimed job that is ready to be sent."""

    claimed: Claimed
    args: list[Any]
    kwargs: dict[str, Any]
    headers: dict[str, Any]


def prepare(connection: EngineConnection, jobs: Sequence[Claimed], reactions: Reactions) -> list[Prepared]:
    """Decode claimed jobs and send `job_started` for each.

    Jobs that have expired end as cancelled. Jobs whose arguments cannot be read here are released for other workers.
    """
    prepared, ended = [], []
    now = time.monotonic()
    for job in jobs:
        if job.start_by is not None and now > job.start_by:
            ended.append(Report(job, Ending.CANCELLED, now, now, error=EXPIRED))
            continue
        each = _prepared(connection, job)
        if isinstance(each, Prepared):
            prepared.append(each)
        else:
            ended.append(each)
    if ended:
        _finish(connection, ended, reactions)
    events = Events()
    for each in prepared:
        if events.are_heard(signals.job_started, each.claimed.task_name):
            about = start_of(each.claimed, connection.alias)
            events.publish(signals.job_started, each.claimed.task_name, about)
    return prepared


def _prepared(connection: EngineConnection, job: Claimed) -> Prepared | Report:
    """Decode a job, and add the results of other jobs. Return a report if that is not possible."""
    now = time.monotonic()
    try:
        args, kwargs, headers = read_call(job)
        if job.in_graph:
            args, kwargs = arguments_with_results(connection, job.job_id, [args, kwargs])
        return Prepared(job, args, kwargs, headers)
    except DependencyUnfinished as error:
        return Report(job, Ending.POSTPONED, now, now, error=str(error), delay_seconds=POSTPONED_SECONDS)
    except DoesNotFit as error:
        return unknown_here(job, str(error))
    except Dead as error:
        return Report(job, Ending.FAILED, now, now, error=str(error), exception_class=class_path(error))


def _finish(connection: EngineConnection, reports: Sequence[Report], reactions: Reactions) -> Finished:
    """Write reports, and do what follows the ends of jobs. The sweep finds what another session has locked."""
    finished, ends = finish(connection, reports, reactions), EndChecks(Reactor(reactions.react))
    ends.note_reports(reports)
    ends.check(connection, at_once=True)
    return finished


def unknown_here(job: Claimed, error: str) -> Report:
    """Return the report of a job that cannot run on its worker: it waits for another one, but not for ever."""
    now = time.monotonic()
    delay_seconds = retry_policy.delay_while_unknown(job.unknown_seconds)
    ending = Ending.FAILED if delay_seconds is None else Ending.UNKNOWN
    return Report(job, ending, job.claimed_at, now, error=error, delay_seconds=delay_seconds)


class Extended(NamedTuple):
    """The result of an extension, by execution id, and the executions that are to be cancelled."""

    results: Mapping[int, TransitionResult]
    cancelled_ids: frozenset[int]


def extend(
    connection: EngineConnection,
    worker: WorkerHandle,
    executions: Sequence[ExecutionHandle],
    progress: Mapping[int, Progress],
) -> Extended:
    """Extend the leases of executions, and write their progress."""
    record_heartbeat(connection, worker)
    keys = {handle.claimed.execution_id: handle.claimed.key for handle in executions}
    seconds = {handle.claimed.key: handle.lease_seconds or get_settings().LEASE for handle in executions}
    results = leases.extend_executions(connection, seconds)
    noted = [Noted(keys[execution_id], each, 0.0) for execution_id, each in progress.items()]
    if noted:
        completions.note_progress(connection, noted)
    worker_ids = sorted({handle.worker_id for handle in executions})
    asked = {execution_id for _, execution_id in leases.cancel_requests(connection, worker_ids)}
    return Extended(results, frozenset(asked & keys.keys()))


def write(connection: EngineConnection, reports: Sequence[Report], reactions: Reactions) -> dict[int, str]:
    """Write how executions ended. Return a word for each, by execution id.

    done: this call wrote it. already: an earlier call did. lost: the execution was closed, with another result or
    ending, or its job is gone.
    locked: another session has the rows locked for 2 s, or the database refuses the report and perhaps all reports.
    refused: the database accepts the report in no form.

    A report that the database refuses is written in the forms that local workers try too, at last as a failure if only
    this report is to blame (see `ReportEvidence`).
    """
    words = dict.fromkeys((report.claimed.execution_id for report in reports), "done")

    def write_all(given: Sequence[Report]) -> Finished:
        return _write(connection, given, reactions, words)

    confirmed = evidence.confirm(reports, write_all(reports), write_all)
    refused, to_blame = confirmed.refused, confirmed.to_blame
    for form in FORMS:
        if not refused:
            break
        changed = [in_form(form, entry, to_blame) for entry in refused]
        again = [report for report in changed if report is not None]
        still = [entry for entry, report in zip(refused, changed, strict=True) if report is None]
        refused = still + write_all(again).refused
    for entry in refused:
        execution_id = entry.row.claimed.execution_id
        words[execution_id] = "refused" if execution_id in to_blame else "locked"
    return words


def _write(
    connection: EngineConnection, reports: Sequence[Report], reactions: Reactions, words: dict[int, str]
) -> Finished:
    """Write reports, those of locked rows for a while, and change `words`. Return the reports that were not written."""
    deadline = time.monotonic() + LOCKED_SECONDS
    result = Finished([], [], [], [])
    while reports:
        finished = _finish(connection, reports, reactions)
        result = Finished(
            finished.locked,
            result.refused + finished.refused,
            result.lost + finished.lost,
            result.repeated + finished.repeated,
        )
        words |= {report.claimed.execution_id: "lost" for report in finished.lost}
        words |= {report.claimed.execution_id: "already" for report in finished.repeated}
        words |= dict.fromkeys(_with_other_results(connection, finished.repeated), "lost")
        reports = finished.locked
        if reports and time.monotonic() > deadline:
            words |= {report.claimed.execution_id: "locked" for report in reports}
            break
        if reports:
            time.sleep(LOCKED_PAUSE_SECONDS)
    return result


def _with_other_results(connection: EngineConnection, repeated: Sequence[Report]) -> list[int]:
    """Return the executions that an earlier request has completed with another result.

    Only a job that has not run again since has the result to compare with.
    """
    given = {report.claimed.execution_id: report for report in repeated if report.ending is Ending.SUCCEEDED}
    if not given:
        return []
    stored = completions.stored_results(connection, [report.claimed.key for report in given.values()])
    return [each for each, text in stored.items() if not _is_same(given[each].result, text)]


def _is_same(given: str | None, stored: str | None) -> bool:
    """Return whether two stored texts are one result. A codec can encode one value as different texts."""
    if given == stored or given is None or stored is None:
        return given == stored
    with suppress(CannotDecode, ValueError, RecursionError):
        return bool(_plain(given) == _plain(stored))
    return True  # it was erased, or this process cannot decode it: then nothing says that it differs


def _plain(text: str) -> Any:
    value = json.loads(text)
    return codecs.decode(value) if is_envelope(value) else value
