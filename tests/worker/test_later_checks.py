"""Large cascades: a worker cancels the dependents of a dead job in pages, beside the completions of other jobs."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from django_pgqueue.ends.end_check import Reactor
from django_pgqueue.ends.end_checks import EndChecks, follow
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import graphs
from django_pgqueue.lifecycle.types import TransitionResult, TransitionStatus
from django_pgqueue.reactions import JobTransition
from django_pgqueue.states import State
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.maintenance.end_sweeps import LaterChecks, end_sweeps
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from django_pgqueue.worker.runtime.connection import Link
from tests import helpers
from tests.concurrency.test_workflows import end_job


def link_to(engine) -> Any:
    return SimpleNamespace(use=lambda: nullcontext(engine))


def states(engine) -> dict[str, int]:
    """Return how many jobs each state has."""
    return dict(engine.execute("SELECT state, count(*) FROM pgqueue_job GROUP BY state").fetchall())


def report(claimed, ending: Ending) -> Report:
    return Report(claimed, ending, 0.0, 0.0, error="no" if ending is Ending.FAILED else "")


class Woken:
    """Counts how often the maintenance is woken."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


@pytest.fixture
def later() -> LaterChecks:
    return LaterChecks(Woken())


def completer_of(engine, later: LaterChecks) -> Completer:
    return Completer(link_to(engine), ends=EndChecks(Reactor(FOREGROUND.react, later=later.add)))


def pages_of(engine, later: LaterChecks) -> list[int]:
    """Run the maintenance's part to its end. Return how many jobs each page has advanced."""
    checks, pages = EndChecks(Reactor(FOREGROUND.react)), []
    while not later.is_empty():
        before = states(engine).get("waiting", 0)
        later.run(link_to(engine), checks)
        pages.append(before - states(engine).get("waiting", 0))
    return pages


def tree(engine, count: int) -> tuple[int, int]:
    """Add a node, `count` nodes that depend on it and one that depends on those, and a plain job. Return both ids."""
    [root] = helpers.make_nodes(engine)
    helpers.make_nodes(engine, needs=helpers.make_nodes(engine, count, needs=[root]))
    return root, helpers.make_job(engine)


@pytest.mark.slow
@pytest.mark.promise("workflow-cascade-beside-completions")
def test_plain_job_completes_after_one_page_of_a_cascade(engine, later):
    """A dead job has 5,000 dependents. The completer cancels at most 2,000 of them before it writes the next report."""
    root, plain = tree(engine, 5000)
    one, two = helpers.claim_all(engine)
    assert (one.job_id, two.job_id) == (root, plain)
    completer = completer_of(engine, later)
    completer.hand_over(report(one, Ending.FAILED))
    completer.tick()
    page = states(engine)["cancelled"]
    assert 0 < page <= 2 * graphs.FIND_LIMIT
    completer.hand_over(report(two, Ending.SUCCEEDED))
    completer.tick()
    assert states(engine) == {"dead": 1, "succeeded": 1, "cancelled": page, "waiting": 5001 - page}
    pages = pages_of(engine, later)
    assert states(engine) == {"dead": 1, "succeeded": 1, "cancelled": 5001}
    assert len(pages) <= 12
    assert max(pages) <= 2 * graphs.FIND_LIMIT


def test_pages_of_a_cascade_leave_few_jobs_in_memory(engine, monkeypatch):
    """The jobs that a page has cancelled come before further dependents of the same job."""
    monkeypatch.setattr(graphs, "FIND_LIMIT", 10)
    root, _ = tree(engine, 200)
    end_job(engine, helpers.claim_one(engine), dies=True)
    left, sizes = {root: 0}, []
    while left:
        _, left = graphs.advance_page(engine, left)
        sizes.append(len(left))
    assert max(sizes) <= 4 * graphs.FIND_LIMIT
    assert states(engine) == {"dead": 1, "cancelled": 201, "ready": 1}


@pytest.fixture
def small_pages(monkeypatch) -> None:
    monkeypatch.setattr(graphs, "FIND_LIMIT", 10)


@pytest.mark.usefixtures("small_pages")
def test_rest_of_a_cascade_wakes_the_maintenance(engine, later):
    tree(engine, 35)
    completer = completer_of(engine, later)
    completer.hand_over(report(helpers.claim_one(engine), Ending.FAILED))
    assert later.is_empty()
    completer.tick()
    assert (later._wake.count, later.is_empty(), completer._ends.due_in_seconds) == (1, False, float("inf"))


@pytest.mark.usefixtures("small_pages")
def test_small_cascade_is_left_to_nobody(engine, later):
    """A chain of three jobs is cancelled in the page that follows the completion."""
    first = helpers.make_nodes(engine)
    for _ in range(3):
        first = helpers.make_nodes(engine, needs=first)
    completer = completer_of(engine, later)
    completer.hand_over(report(helpers.claim_one(engine), Ending.FAILED))
    completer.tick()
    assert (states(engine), later.is_empty()) == ({"dead": 1, "cancelled": 3}, True)


@pytest.mark.usefixtures("small_pages")
@pytest.mark.promise("workflow-advance-found-by-sweep")
def test_sweep_ends_the_cascade_of_a_lost_process(engine, later):
    """The process dies after the first page, and with it the list of the other pages."""
    tree(engine, 35)
    completer = completer_of(engine, later)
    completer.hand_over(report(helpers.claim_one(engine), Ending.FAILED))
    completer.tick()
    assert states(engine)["waiting"] > 10
    [sweep] = [each for each in end_sweeps(link_to(engine), Reactor(FOREGROUND.react)) if each.name == "waiting"]
    while sweep.run():
        pass
    assert states(engine) == {"dead": 1, "cancelled": 36, "ready": 1}


@pytest.mark.usefixtures("small_pages")
def test_sweep_leaves_the_rest_of_a_cascade_too(engine, later):
    """Rescues wait for the sweep, which is in the same thread."""
    [root] = helpers.make_nodes(engine)
    helpers.make_nodes(engine, 100, needs=helpers.make_nodes(engine, needs=[root]))
    end_job(engine, helpers.claim_one(engine), dies=True)
    reactor = Reactor(FOREGROUND.react, later=later.add)
    [sweep] = [each for each in end_sweeps(link_to(engine), reactor) if each.name == "waiting"]
    sweep.run()
    assert 0 < states(engine)["cancelled"] <= 50
    assert not later.is_empty()
    pages_of(engine, later)
    assert states(engine) == {"dead": 1, "cancelled": 101}


@pytest.mark.usefixtures("small_pages")
def test_cascade_after_another_end_is_left_too(engine, later):
    """The fetcher, the lease monitor and the maintenance follow the ends that no report describes."""
    root, _ = tree(engine, 35)
    end_job(engine, helpers.claim_one(engine), dies=True)
    dead = JobTransition(root, None, TransitionResult(TransitionStatus.DONE, State.DEAD))
    follow(engine, [dead], FOREGROUND.react, later=later.add)
    assert 0 < states(engine)["cancelled"] <= 20
    pages_of(engine, later)
    assert states(engine) == {"dead": 1, "cancelled": 36, "ready": 1}


@pytest.mark.usefixtures("small_pages")
def test_caller_without_maintenance_does_all_pages(engine):
    root, _ = tree(engine, 35)
    end_job(engine, helpers.claim_one(engine), dies=True)
    dead = JobTransition(root, None, TransitionResult(TransitionStatus.DONE, State.DEAD))
    follow(engine, [dead], FOREGROUND.react)
    assert states(engine) == {"dead": 1, "cancelled": 36, "ready": 1}


def test_page_that_meets_an_outage_is_done_again(engine, later):
    class Lost:
        name, interval_seconds, sweeps = "lost", 0.0, ()
        calls: list[set[int]] = []

        def note(self, ended):
            return ()

        def check(self, connection, noted, reactor):
            self.calls.append(set(noted))
            if len(self.calls) == 1:
                raise psycopg.OperationalError
            return SimpleNamespace(locked=(), refused=(), ended=(), left=())

    lost: Any = Lost()
    checks = EndChecks(checks=[lost])
    later.add("lost", [7])
    with pytest.raises(psycopg.OperationalError):
        later.run(link_to(engine), checks)
    assert not later.is_empty()
    assert later.run(link_to(engine), checks) is False
    assert (lost.calls, later.is_empty()) == ([{7}, {7}], True)


@pytest.mark.usefixtures("small_pages")
def test_maintenance_does_a_new_page_at_once(engine, committing):
    """Its duty is due whenever another thread has added something, also while it runs."""
    link = Link("default", "maintenance")
    later = LaterChecks()
    maintenance = Maintenance(link, later=later)
    root, _ = tree(engine, 35)
    end_job(engine, helpers.claim_one(engine), dies=True)
    [duty] = [each for each in maintenance.duties if each.name == "ends"]
    maintenance.duties = [duty]
    duty.due_at = float("inf")
    maintenance.tick()
    assert states(engine)["waiting"] == 36
    follow(
        engine,
        [JobTransition(root, None, TransitionResult(TransitionStatus.DONE, State.DEAD))],
        FOREGROUND.react,
        later=later.add,
    )
    try:
        helpers.wait_until(lambda: maintenance.tick() > 1.0)
    finally:
        link.close()
    assert states(engine) == {"dead": 1, "cancelled": 36, "ready": 1}
