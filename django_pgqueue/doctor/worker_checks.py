"""Checks of the workers: whether they are live, which version they run, and which queues they serve.

`examine()` runs `WORKER_CHECKS`, at the end of this module.
"""

from __future__ import annotations

from typing import Any, Final

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from django_pgqueue import __version__, stats
from django_pgqueue.display import number
from django_pgqueue.ground.served_queues import ServedQueues
from django_pgqueue.settings.conf import get_settings
from django_pgqueue.stats.causes.worker_states import MIXED_SECONDS, mix_of
from django_pgqueue.stats.fleet import read_workers

from .findings import Level, Result, check, listed, ok, quoted, span
from .session import Session

LIVE_LEASES: Final = 2
"""Leases without a heartbeat after which a worker does not count as live, as in the admin's list."""
STALE_SECONDS: Final = 86_400.0
UNSERVED_SECONDS: Final = 60.0
SHOWN: Final = 100

# The register of workers, without those that have stopped and without `pgqueue run`, whose queue is "job <id>".
#
# Cost: reads the register, which has one row for each start of a worker within a week
WORKERS: Final = """/* pgqueue:doctor_workers */
SELECT id, hostname, pid, version, queue_names,
       date_part('epoch', statement_timestamp() + %(time_shift)s::interval - last_heartbeat_at)
FROM pgqueue_worker
WHERE stopped_at IS NULL AND queue_names NOT LIKE 'job %%'
ORDER BY last_heartbeat_at DESC
LIMIT 10000
"""


def _workers(session: Session) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the workers with a heartbeat within two leases, and those without one."""
    keys = ("id", "hostname", "pid", "version", "queue_names", "heartbeat_seconds_ago")
    found = [dict(zip(keys, row, strict=True)) for row in session.rows(WORKERS)]
    limit = LIVE_LEASES * get_settings().LEASE
    live = [each for each in found if each["heartbeat_seconds_ago"] <= limit]
    return live, found[len(live) :]


@check(
    "stale_workers",
    "Warning: a worker of the last day has not stopped, and has sent no heartbeat for two leases.",
    gettext_lazy("Its host, its process or its network was lost, and its jobs ran again on another worker."),
)
def _stale_workers(session: Session) -> Result:
    live, stale = _workers(session)
    recent = [each for each in stale if each["heartbeat_seconds_ago"] < STALE_SECONDS]
    data = {"live": len(live), "stale": recent[:SHOWN], "older": len(stale) - len(recent)}
    if not recent:
        what = ngettext(
            "%(count)s worker is running, and none was lost in the last day.",
            "%(count)s workers are running, and none was lost in the last day.",
            len(live),
        )
        return ok(what % {"count": number(len(live))}, **data)
    latest = recent[0]
    what = ngettext(
        "%(count)s worker ended without a clean stop in the last day, the latest on %(host)s (process %(pid)s), "
        "silent for %(span)s.",
        "%(count)s workers ended without a clean stop in the last day, the latest on %(host)s (process %(pid)s), "
        "silent for %(span)s.",
        len(recent),
    ) % {
        "count": number(len(recent)),
        "host": quoted(latest["hostname"]),
        "pid": latest["pid"],
        "span": span(latest["heartbeat_seconds_ago"]),
    }
    fix = _(
        "Read the log of that host. If the host is gone for good, nothing has to be done: other workers that "
        "serve the queues of its jobs run these again."
    )
    return Result(Level.WARNING, what, fix, data)


@check(
    "worker_versions",
    "Warning: running workers have different versions of this package, or have run different releases of the project "
    f"for {MIXED_SECONDS / 60:.0f} min. Info: they have another version than this process.",
    gettext_lazy("An unfinished deploy keeps old code running, which does not know new tasks."),
)
def _worker_versions(session: Session) -> Result:
    live, _lost = _workers(session)
    versions = sorted({each["version"] for each in live})
    data = {"versions": versions, "this_process": __version__}
    if len(versions) > 1:
        what = _("Workers of %(count)s versions are running: %(versions)s.") % {
            "count": len(versions),
            "versions": listed(versions),
        }
        return Result(Level.WARNING, what, _("Restart the workers that still run the old version."), data)
    if not versions:
        return ok(_("No worker is running."), **data)
    seconds, releases = mix_of([each for each in read_workers(session.connection, []) if each.is_live])
    data["releases"] = sorted(releases)
    if seconds >= MIXED_SECONDS:
        what = _("Workers have run %(count)s releases for %(span)s: %(releases)s.") % {
            "count": number(len(releases)),
            "span": span(seconds),
            "releases": listed(data["releases"]),
        }
        return Result(Level.WARNING, what, _("Finish the deploy, or restart the workers of the old release."), data)
    if versions != [__version__]:
        what = _("The workers run version %(version)s, and this process %(own)s.") % {
            "version": quoted(versions[0]),
            "own": quoted(__version__),
        }
        return Result(Level.INFO, what, _("Restart the workers, if their deploy is finished."), data)
    return ok(_("All workers run the django_pgqueue version of this process."), **data)


@check(
    "unserved_queues",
    f"Error: a queue that is not paused has jobs that have been due for {UNSERVED_SECONDS:.0f} s, and no running "
    "worker serves it. Info: no worker is running.",
    gettext_lazy("These jobs never start."),
)
def _unserved_queues(session: Session) -> Result:
    live, _lost = _workers(session)
    waited: dict[str, float] = {}
    for lane in stats.lanes(session.alias):
        if lane.oldest_due_seconds is not None and not lane.is_paused:
            waited[lane.queue_name] = max(lane.oldest_due_seconds, waited.get(lane.queue_name, 0.0))
    served = {name for each in live for name in ServedQueues.from_text(each["queue_names"]).names or ("",)}
    unserved = {
        name: seconds
        for name, seconds in waited.items()
        if seconds >= UNSERVED_SECONDS and "" not in served and name not in served
    }
    data = {"unserved": unserved, "live_workers": len(live)}
    if unserved:
        longest = max(unserved, key=lambda name: unserved[name])
        what = _unserved_text(len(unserved), is_any_running=bool(live)) % {
            "count": number(len(unserved)),
            "queues": listed(unserved),
            "span": span(unserved[longest]),
        }
        fix = f"manage.py runworker --queues {longest}" if live else "manage.py runworker"
        return Result(Level.ERROR, what, fix, data)
    if not live:
        return Result(Level.INFO, _("No worker is running, and no job has been due for a minute."), data=data)
    return ok(_("A worker serves every queue that has due jobs."), **data)


def _unserved_text(queues: int, *, is_any_running: bool) -> str:
    if is_any_running:
        return ngettext(
            "No worker serves %(count)s queue with due jobs: %(queues)s. The oldest job has waited for %(span)s.",
            "No worker serves %(count)s queues with due jobs: %(queues)s. The oldest job has waited for %(span)s.",
            queues,
        )
    return ngettext(
        "No worker is running for %(count)s queue with due jobs: %(queues)s. The oldest job has waited for %(span)s.",
        "No worker is running for %(count)s queues with due jobs: %(queues)s. The oldest job has waited for %(span)s.",
        queues,
    )


WORKER_CHECKS: Final = (_stale_workers, _worker_versions, _unserved_queues)
