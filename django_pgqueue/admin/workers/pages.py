"""Read and format the rows for the list of workers and the page of one worker. Called by `workers`.

Live workers come first, by host, each with the jobs that it runs. Workers without a heartbeat and stopped workers
follow in bounded lists.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from django_pgqueue import stats
from django_pgqueue.admin.formatting import breakable, duration, moment, moment_ago, visible
from django_pgqueue.db.fields import statement_time
from django_pgqueue.ground.served_queues import OTHERS, ServedQueues
from django_pgqueue.models import Worker

RUNNING_SHOWN: Final = 8
"""Jobs of a worker that the list shows. The page of the worker shows more."""
STOPPED_SHOWN: Final = 20
SILENT_SHOWN: Final = 50


def list_context(alias: str) -> dict[str, Any]:
    """Return what the list of workers shows. Runs four statements."""
    workers = stats.workers(alias)
    live = [worker for worker in workers if worker.is_live]
    silent = [worker for worker in workers if not worker.is_live]
    jobs = _jobs_by_worker([*live, *silent[:SILENT_SHOWN]], alias)
    newest = max(live, key=lambda worker: worker.started_at, default=None)
    version = "" if newest is None else newest.version
    by_host = defaultdict(list)
    for worker in sorted(live, key=lambda worker: (worker.host, worker.pid)):
        by_host[worker.host].append(worker)
    versions = Counter(worker.version for worker in live)
    stopped = Worker.objects.using(alias).filter(stopped_at__isnull=False).order_by("-pk")
    stopped = stopped.annotate(seen_at=statement_time())
    return {
        "database": alias,
        "hosts": [
            {
                "name": visible(name),
                "rows": [worker_row(worker, jobs[worker.id], version) for worker in of_host],
                **_slots(of_host),
            }
            for name, of_host in by_host.items()
        ],
        "processes": len(live),
        **_slots(live),
        "versions": [(visible(name), count) for name, count in versions.most_common()] if len(versions) > 1 else [],
        "silent": [worker_row(worker, jobs[worker.id], "") for worker in silent[:SILENT_SHOWN]],
        "more_silent": len(silent) - SILENT_SHOWN,
        "stopped": [_stopped_row(worker) for worker in stopped[:STOPPED_SHOWN]],
        "stopped_shown": STOPPED_SHOWN,
    }


def worker_row(worker: stats.WorkerStats, jobs: Sequence[stats.RunningJob], version: str) -> dict[str, Any]:
    """Return a worker as the pages show it. `version` is that of the latest start; "" if it does not matter."""
    return {
        "worker": worker,
        "host": visible(worker.host),
        "version": visible(worker.version),
        "is_other_version": bool(version) and worker.version != version,
        "queues": _queues(ServedQueues(worker.queues, worker.queue_concurrency)),
        "jobs": [running_row(job) for job in jobs[:RUNNING_SHOWN]],
        "more_jobs": max(0, worker.slots_busy + worker.prefetched - RUNNING_SHOWN),
        "started": _ago(worker, worker.started_at),
        "heartbeat": _ago(worker, worker.last_heartbeat_at),
    }


def running_row(job: stats.RunningJob) -> dict[str, Any]:
    """Return a running job as the pages show it."""
    return {
        "job_id": job.job_id,
        "execution_id": job.execution_id,
        "task": breakable(job.task_name),
        "queue": visible(job.queue_name),
        "since": duration(timedelta(seconds=max(0.0, job.seconds))),
        "is_started": job.is_started,
    }


def siblings(worker: stats.WorkerStats, workers: Iterable[stats.WorkerStats]) -> list[stats.WorkerStats]:
    """Return this process and the live processes of the same supervisor. A request to stop ends all of them."""
    supervisor = worker.host, worker.supervisor_pid
    return [
        each
        for each in workers
        if each.id == worker.id or (each.is_live and (each.host, each.supervisor_pid) == supervisor)
    ]


def _jobs_by_worker(workers: Iterable[stats.WorkerStats], alias: str) -> defaultdict[int, list[stats.RunningJob]]:
    busy = [worker.id for worker in workers if worker.slots_busy]
    found = defaultdict(list)
    for job in stats.running_jobs(busy, alias) if busy else ():
        found[job.worker_id].append(job)
    return found


def _slots(workers: Sequence[stats.WorkerStats]) -> dict[str, int]:
    """Return how many slots of some workers are busy, and how many there are."""
    return {
        "busy": sum(worker.slots_busy for worker in workers),
        "total": sum(worker.slots_total for worker in workers),
    }


def _ago(worker: stats.WorkerStats, at: Any) -> SafeString | str:
    """Return how long ago a moment was, by the database's clock at the time of the reading."""
    seen_at = worker.last_heartbeat_at + timedelta(seconds=worker.heartbeat_age_seconds)
    text = duration(seen_at - at, brief=True)
    return moment(at, text)


def _queues(served: ServedQueues) -> list[str]:
    """Return the queues of a worker, with the number of each that `--queue` limits. Empty: all queues."""
    if not served.concurrency:
        return [visible(name) for name in served.names]
    pairs = [
        (_("all others") if name == OTHERS else visible(name), number) for name, number in served.concurrency.items()
    ]
    return [name if number is None else f"{name} ({number})" for name, number in pairs]


def _stopped_row(worker: Worker) -> dict[str, Any]:
    return {
        "pk": worker.pk,
        "host": visible(worker.hostname),
        "pid": worker.pid,
        "version": visible(worker.version),
        "queues": _queues(ServedQueues.from_text(worker.queue_names)),
        "started": moment_ago(worker.started_at, worker),
        "stopped": moment_ago(worker.stopped_at, worker),
    }
