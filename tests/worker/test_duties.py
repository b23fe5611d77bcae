"""The duties that capabilities hand to the maintenance: each runs in every worker process."""

import time
from collections import Counter
from contextlib import nullcontext
from types import SimpleNamespace

from django_pgqueue.lifecycle import orphans, search_keys
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.maintenance import duties
from django_pgqueue.worker.maintenance.duties import DUTIES
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from tests import helpers


def link_to(engine):
    return SimpleNamespace(alias=engine.alias, use=lambda: nullcontext(engine))


def duty(name, engine):
    [kind] = [each for each in DUTIES if each.name == name]
    return kind.start(link_to(engine), FOREGROUND)


def test_maintenance_runs_every_duty_of_a_capability(engine, caplog):
    maintenance = Maintenance(link_to(engine))
    names = [each.name for each in maintenance.duties]
    assert [name for name, count in Counter(names).items() if count > 1] == [], (
        "each duty, sweep and kind of orphans has its own name"
    )
    assert {kind.name for kind in DUTIES} < set(names)
    for each in maintenance.duties:
        each.due_at = 0.0
    maintenance.tick()
    assert all(each.due_at > time.monotonic() for each in maintenance.duties)
    assert maintenance.has_recovered() and not caplog.records


def test_walk_goes_on_behind_the_last_page(engine, monkeypatch):
    """The first page has only rows of living jobs, so its rows stay."""
    job_ids = helpers.make_jobs(engine, 2)
    search_keys.add_search_keys(engine, {job_id: {"a": "b"} for job_id in [*job_ids, max(job_ids) + 1]})
    monkeypatch.setattr(orphans.prune_orphans, "__defaults__", (0, 2))
    walk = duty("search keys", engine)
    assert [walk(), walk()] == [True, False]
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_search_key") == 2


def test_removal_by_an_index_goes_on_while_pages_are_full(engine, monkeypatch):
    monkeypatch.setattr(duties, "WINDOWS_PRUNED", 1)
    columns = "task_name, unique_key, job_id, ends_at"
    engine.execute(f"INSERT INTO pgqueue_uniqueness_window ({columns}) VALUES ('a', 'b', 1, '2001-01-01')")
    remove = duty("windows", engine)
    assert [remove(), remove()] == [True, False]
