"""Test what a process counts for the metrics port, how counts are added up, and how they are rendered."""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import UTC, datetime, timedelta

import pytest

from django_pgqueue import __version__
from django_pgqueue.db import statements
from django_pgqueue.db.engine_connection import EngineConnection
from django_pgqueue.ground.endings import Ending
from django_pgqueue.ground.prometheus import Histogram
from django_pgqueue.lifecycle.types import TransitionResult, TransitionStatus
from django_pgqueue.reactions import JobTransition
from django_pgqueue.states import State
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.monitoring.http_server import Request
from django_pgqueue.worker.monitoring.metrics import METRICS, Totals, families
from django_pgqueue.worker.monitoring.metrics_process import Pages
from django_pgqueue.worker.runtime import counts as counts_module
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.runtime.counts import EXIT_REASONS, JOB_ROWS, OUTCOMES, CountMemory, Counts
from django_pgqueue.worker.runtime.health_report import HealthReport
from django_pgqueue.worker.runtime.shared_memory import ExitReason, HealthMemory, lease_clock
from django_pgqueue.worker.runtime.worker_memory import WorkerMemory
from tests import helpers
from tests.app import tasks

TASK = ("default", "app.tasks.one")


class Job:
    """The fields of a claimed job that are counted."""

    others = None

    def __init__(self, wait_seconds=0.0, labels=TASK) -> None:
        self.queue_name, self.task_name = labels
        self.claimed_ms = time.time() * 1000
        self.run_after = datetime.fromtimestamp(self.claimed_ms / 1000, UTC) - timedelta(seconds=wait_seconds)


def report(ending=Ending.SUCCEEDED, run_seconds=0.02, **about):
    now = time.monotonic()
    return Report(Job(**about), ending, now, now + run_seconds)


@pytest.fixture
def clock(monkeypatch):
    """Return the clock of this file and of the counts. It does not advance by itself."""
    return helpers.Clock(monkeypatch, counts_module, sys.modules[__name__])


@pytest.fixture
def memory(monkeypatch):
    """Return the memory of a worker with one process that counts."""
    monkeypatch.setattr("django_pgqueue.worker.runtime.worker_memory.health_memory", HealthMemory())
    memory = WorkerMemory(1, counting=True)
    process = memory.free_place()
    process.pid, process.started_at, process.lease_until = 11, time.monotonic(), lease_clock() + 60.0
    process.answered("claim")
    return memory


@pytest.fixture
def counts(memory, clock):
    """Return the counts of the process."""
    counts = Counts()
    counts.use(memory.counts[0])
    counts.claimed([Job()])
    yield counts
    counts.use(None)


def read(memory, name):
    """Return the samples of a metric by their labels."""
    [metric] = [metric for metric in METRICS if metric.name == name]
    return dict(metric.read(Totals(memory)))


def test_info_of_the_worker_names_the_release(memory):
    reports = {"": HealthReport(memory), 'v"2': HealthReport({"a": memory, "b": memory}, 'v"2')}
    for release, report in reports.items():
        [family] = [each for each in families(report) if each.name == "pgqueue_worker_info"]
        assert [labels[-2:] for labels, _ in family.samples] == [(__version__, release)] * (
            len(report.by_database) or 1
        )


# ------------------------------------------------------------------------------- what is counted


def test_counts_of_a_batch_have_outcome_run_time_and_wait(memory, counts):
    batch = [report(wait_seconds=2.0), report(Ending.WRITTEN, run_seconds=7.0), report(labels=("mail", "app.other"))]
    counts.completed(batch, [], [])
    assert read(memory, "pgqueue_attempts") == {
        (*TASK, "succeeded"): 2.0,
        ("mail", "app.other", "succeeded"): 1.0,
    }
    runs = read(memory, "pgqueue_run_seconds")[TASK]
    assert dict(zip(runs.limits, runs.counts, strict=False))[0.025] == 1.0
    assert dict(zip(runs.limits, runs.counts, strict=False))[10.0] == 1.0
    assert (sum(runs.counts), runs.total) == (2.0, pytest.approx(7.02))
    waits = read(memory, "pgqueue_wait_seconds")[TASK]
    assert dict(zip(waits.limits, waits.counts, strict=False))[2.5] == 1.0
    assert waits.total == pytest.approx(2.0, abs=0.2)
    assert sum(read(memory, "pgqueue_completion_batch_size")[()].counts) == 1.0
    assert read(memory, "pgqueue_completion_batch_size")[()].total == 3.0


def test_counts_leave_out_reports_that_were_not_written_or_are_lost(memory, counts):
    locked, lost, written = report(), report(), report()
    counts.completed([locked, lost, written], [locked], [lost])
    assert read(memory, "pgqueue_attempts") == {(*TASK, "succeeded"): 1.0}
    assert read(memory, "pgqueue_leases_lost") == {(): 1.0}
    counts.completed([lost], [], [lost])
    assert read(memory, "pgqueue_completion_batch_size")[()].total == 1.0


def test_counts_of_large_batch_are_exact_and_times_are_sampled(memory, counts):
    sizes = (1, 15, 16, 17, 31, 32, 33, 399, 1000)
    for size in sizes:
        counts.completed([report() for _ in range(size)], [], [])
    assert read(memory, "pgqueue_attempts") == {(*TASK, "succeeded"): sum(sizes)}
    for name in ("pgqueue_run_seconds", "pgqueue_wait_seconds"):
        assert sum(read(memory, name)[TASK].counts) == sum(sizes)
    assert read(memory, "pgqueue_run_seconds")[TASK].total == pytest.approx(0.02 * sum(sizes))


@pytest.mark.parametrize(
    ("ending", "state", "outcome"),
    [
        (Ending.FAILED, State.READY, "failed"),
        (Ending.FAILED, State.DEAD, "dead"),
        (Ending.CRASHED, State.READY, "crashed"),
        (Ending.RELEASED, State.READY, "released"),
        (Ending.UNKNOWN, State.READY, "released"),
        (Ending.SNOOZED, State.READY, "snoozed"),
        (Ending.RELEASED, State.CANCELLED, "cancelled"),
        (None, State.CANCELLED, "cancelled"),
        (Ending.SUCCEEDED, State.SUCCEEDED, None),
        (None, State.READY, None),
    ],
)
def test_counts_transition_has_the_outcome_of_its_new_state(memory, counts, ending, state, outcome):
    result = TransitionResult(TransitionStatus.DONE, state)
    counts.observe(JobTransition(7, TASK[1], result, ending, details={"queue_name": TASK[0]}), "default")
    assert read(memory, "pgqueue_attempts") == ({} if outcome is None else {(*TASK, outcome): 1.0})


def test_counts_rescue_is_counted_apart(memory, counts):
    result = TransitionResult(TransitionStatus.DONE, State.READY)
    counts.observe(JobTransition(7, TASK[1], result, Ending.CRASHED, is_rescued=True), "default")
    assert read(memory, "pgqueue_rescued") == {(): 1.0}


def test_counts_of_claims_schedules_and_ends_are_kept(memory, counts):
    now = datetime.now(UTC)
    counts.claimed([Job()] * 7)
    counts.claimed([])
    counts.fired(now - timedelta(seconds=3), now)
    counts.process_ended(ExitReason.NONE)
    counts.process_ended(ExitReason.LEASE_LOST)
    claims = read(memory, "pgqueue_claim_batch_size")[()]
    assert (sum(claims.counts), claims.total) == (2.0, 8.0)
    assert read(memory, "pgqueue_schedule_lag_seconds")[()].total == 3.0
    ends = {reason: count for (reason,), count in read(memory, "pgqueue_process_ends").items() if count}
    assert ends == {"crashed": 1.0, "lease_lost": 1.0}
    assert tuple(reason.name.lower().replace("none", "crashed") for reason in ExitReason) == EXIT_REASONS


def test_counts_statement_of_engine_connection_by_name(memory, counts, engine):
    statements.execute(engine, "/* pgqueue:claim */ SELECT 1", {})
    statements.execute(engine, "/* pgqueue:claim */ SELECT 2", {})
    statements.execute(engine, "SELECT 3", {})
    assert read(memory, "pgqueue_statements") == {("claim",): 2.0}
    assert 0.0 < read(memory, "pgqueue_statement_seconds")[("claim",)] < 10.0


def test_counts_without_port_count_nothing():
    counts = Counts()
    assert not counts.is_on
    assert EngineConnection.record_statement is None
    counts.claimed([Job()])
    counts.completed([report()], [], [])
    counts.fired(datetime.now(UTC), datetime.now(UTC))
    counts.process_ended(ExitReason.NONE)
    counts.ran_statement("/* pgqueue:claim */", 1.0)
    counts.observe(JobTransition(7, None, TransitionResult(TransitionStatus.DONE, State.DEAD)), "default")


def test_completer_counts_what_it_has_written(memory, counts, committing, engine, monkeypatch):
    """One job succeeds, one fails, and the execution of one was closed by another process meanwhile."""
    monkeypatch.setattr("django_pgqueue.worker.completion.completer.counts", counts)
    for _ in range(3):
        helpers.make_job(engine, task_name=tasks.add.name, max_attempts=1)
    succeeded, failed, lost = helpers.claim_all(engine)
    with engine.cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_execution SET outcome = 'crashed', finished_at = now() WHERE id = %s", [lost.execution_id]
        )
    completer = Completer(Link("default", "completer"))
    now = time.monotonic()
    for claimed, ending in ((succeeded, Ending.SUCCEEDED), (failed, Ending.FAILED), (lost, Ending.SUCCEEDED)):
        completer.hand_over(Report(claimed, ending, now, now, task=tasks.add))
    completer.tick()
    completer.link.close()
    assert read(memory, "pgqueue_leases_lost") == {(): 1.0}
    assert read(memory, "pgqueue_attempts") == {("default", tasks.add.name, "succeeded"): 1.0}
    assert sum(read(memory, "pgqueue_run_seconds")["default", tasks.add.name].counts) == 2.0


# ------------------------------------------------------------------------------- several processes


@pytest.mark.promise("metrics-never-go-back")
def test_counts_of_replaced_process_continue_in_its_place(memory, counts):
    """Totals never go back: the next process finds the rows of the one before it, and adds to them."""
    counts.completed([report(), report(labels=("mail", "app.other"))], [], [])
    table = memory.counts[0].jobs
    table._starts, table._read = {}, 0  # as the next process inherits them from the supervisor
    following = Counts()
    following.use(memory.counts[0])
    following.completed([report()], [], [])
    assert read(memory, "pgqueue_attempts") == {(*TASK, "succeeded"): 2.0, ("mail", "app.other", "succeeded"): 1.0}
    assert len(list(table.rows())) == 2


def test_counts_of_all_processes_are_added_up(memory, counts):
    others = [Counts() for _ in memory.counts[1:]]
    for other, own in zip(others, memory.counts[1:], strict=True):
        other.use(own)
        other.completed([report()], [], [])
    counts.completed([report()], [], [])
    assert read(memory, "pgqueue_attempts") == {(*TASK, "succeeded"): 4.0}
    assert sum(read(memory, "pgqueue_run_seconds")[TASK].counts) == 4.0


def test_worker_memory_counts_belong_to_the_place_of_a_process(memory):
    first, second = memory.places
    assert memory.counts_of(first) is memory.counts[0]
    assert memory.counts_of(second) is memory.counts[1]
    assert memory.counts_of(HealthMemory()) is None
    assert {memory.supervisor_counts, memory.helper_counts} == set(memory.counts[2:])
    assert WorkerMemory(1).counts == []
    assert WorkerMemory(1).counts_of(first) is WorkerMemory(1).helper_counts is None


def test_count_table_full_of_labels_uses_other():
    table = CountMemory().jobs
    for number in range(JOB_ROWS + 50):
        table.cells[table.start_of(("default", f"task {number}"))] += 1
    rows = dict(table.rows())
    assert len(rows) == JOB_ROWS
    assert rows["other", "other"][0] == 51
    assert rows["default", "task 199"][0] == 1
    assert table.start_of(("default", "task 3")) != table.start_of(("other", "other"))


def test_count_table_long_labels_are_cut_within_a_character():
    table = CountMemory().jobs
    table.cells[table.start_of(("ä" * 100, "b" * 300))] += 1
    [(labels, cells)] = table.rows()
    assert labels == ("ä" * 60, "b" * 120)
    assert cells[0] == 1


# ------------------------------------------------------------------------------- the page


def page(memory, accept=""):
    async def run():
        return await Pages(HealthReport(memory)).metrics(Request("/metrics", "", accept))

    return asyncio.run(run())


def test_metrics_page_has_every_metric_in_valid_format(memory, counts):
    parser = pytest.importorskip("prometheus_client.parser")
    counts.completed([report(), report(run_seconds=10_000.0)], [], [])
    [process] = memory.living()
    process.slots, process.running, process.prefetched, process.listens = 10, 3, 2, True
    process.oldest_report_at = time.monotonic() - 5000.0
    answer = page(memory)
    assert answer.content_type.startswith("text/plain; version=")
    families = {family.name: family for family in parser.text_string_to_metric_families(answer.body.decode())}
    assert set(families) == {metric.name for metric in METRICS}
    for metric in METRICS:
        assert (families[metric.name].type, families[metric.name].documentation) == (metric.kind, metric.help)
    values = {family.name: family.samples[0].value for family in families.values() if len(family.samples) == 1}
    assert (values["pgqueue_slots"], values["pgqueue_slots_busy"], values["pgqueue_prefetched"]) == (10.0, 3.0, 2.0)
    assert (values["pgqueue_processes"], values["pgqueue_processes_listening"]) == (1.0, 1.0)
    assert (values["pgqueue_alive"], values["pgqueue_ready"]) == (1.0, 1.0)
    assert values["pgqueue_oldest_unwritten_seconds"] == pytest.approx(5000.0, abs=100.0)
    runs = {
        sample.labels["le"]: sample.value for sample in families["pgqueue_run_seconds"].samples if "le" in sample.labels
    }
    assert (runs["0.01"], runs["0.025"], runs["3600"], runs["+Inf"]) == (0.0, 1.0, 1.0, 2.0)


def test_metrics_page_in_openmetrics_ends_with_its_mark(memory):
    answer = page(memory, "application/openmetrics-text; version=1.0.0")
    assert answer.content_type.startswith("application/openmetrics-text")
    assert answer.body.endswith(b"# EOF\n")


def test_metrics_labels_and_values_fit_together(memory, counts):
    counts.completed([report()], [], [])
    counts.ran_statement("/* pgqueue:claim */", 1.0)
    for metric in METRICS:
        for labels, value in metric.read(Totals(memory)):
            assert len(labels) == len(metric.labels), metric.name
            assert isinstance(value, Histogram) is (metric.kind == "histogram"), metric.name
    assert len(OUTCOMES) == len(set(OUTCOMES))
