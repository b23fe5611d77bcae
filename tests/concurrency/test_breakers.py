"""Test circuit breakers of limit keys: when they open, who probes the key, and what closes them."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import nullcontext
from types import MappingProxyType, SimpleNamespace

import psycopg
import pytest

from django_pgqueue.db.statements import clock
from django_pgqueue.declared.breakers import Breaker
from django_pgqueue.declared.limits import Limit, logged
from django_pgqueue.exceptions import Dead, Retry, TaskTimeout
from django_pgqueue.ground.endings import Ending
from django_pgqueue.lifecycle import breakers, limit_overrides, limits
from django_pgqueue.lifecycle import pauses as lifecycle_pauses
from django_pgqueue.lifecycle.breakers import Ended, Suspect
from django_pgqueue.reactions import Reactions
from django_pgqueue.states import Pausable
from django_pgqueue.tasks import registry
from django_pgqueue.worker.completion import breaker_counter as module
from django_pgqueue.worker.completion.breaker_counter import BreakerCounter
from django_pgqueue.worker.completion.completer import Completer
from django_pgqueue.worker.completion.waiters import Waiters
from django_pgqueue.worker.completion.writer import finish
from django_pgqueue.worker.execution.job_events import FOREGROUND
from django_pgqueue.worker.execution.report import Report
from django_pgqueue.worker.maintenance.duties import DUTIES
from django_pgqueue.worker.maintenance.maintenance import Maintenance
from django_pgqueue.worker.runtime.connection import Link
from django_pgqueue.worker.supervision.crash_charges import settle
from tests import helpers
from tests.concurrency.limits import LANE, OPTIONS, LimitedWorker, add
from tests.concurrency.test_limit_overrides import override

BREAKER = Breaker(failures=0.5, attempts=4, seconds=60, pause=30)
NETWORK = Breaker(failures=0.5, attempts=2, exceptions=(OSError,))
LIMITS = {
    limit.name: limit
    for limit in (
        Limit("api", breaker=BREAKER),
        Limit("keyed", key="{key}", concurrency=10, breaker=BREAKER),
        Limit("network", breaker=NETWORK),
        Limit("plain", key="{key}", concurrency=2),
    )
}
DUE = "UPDATE pgqueue_job SET run_after = '2001-01-01' WHERE state = 'ready'"


@pytest.fixture(autouse=True)
def known_limits(monkeypatch):
    monkeypatch.setattr(registry, "_limits", MappingProxyType(LIMITS))
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.0)


def report(claimed, *, fails, **changes):
    now = time.monotonic()
    defaults = {"ending": Ending.FAILED, "delay_seconds": 0.0} if fails else {"ending": Ending.SUCCEEDED}
    return Report(claimed, started_at=now - 0.02, finished_at=now - 0.01, **{**defaults, **changes})


class Process(LimitedWorker):
    """A worker process: it claims as one, and counts the attempts that end."""

    def __init__(self, connection):
        super().__init__()
        self.connection = connection
        self.counter = BreakerCounter()
        self.reactions = Reactions([], Waiters(), counters=[self.counter])

    def start(self, limit=100):
        """Claim jobs."""
        self.scan(self.connection)
        jobs = []
        while more := self.claim(self.connection, limit=limit - len(jobs), **OPTIONS) if len(jobs) < limit else ():
            jobs += more
        return jobs

    def end(self, jobs, *, fails, **changes):
        """Write how these jobs ended, and the counts."""
        finish(self.connection, [report(job, fails=fails, **changes) for job in jobs], self.reactions)
        self.counter.write(self.connection)

    def run(self, key, outcomes, **changes):
        """Run new jobs of a key: those marked "f" fail, the others succeed."""
        add(self.connection, key, len(outcomes))
        jobs = self.start(len(outcomes))
        assert len(jobs) == len(outcomes)
        self.end([job for job, outcome in zip(jobs, outcomes, strict=True) if outcome == "s"], fails=False)
        failed = [job for job, outcome in zip(jobs, outcomes, strict=True) if outcome == "f"]
        self.end(failed, fails=True, **{"delay_seconds": None, **changes})


@pytest.fixture
def process(engine):
    return Process(engine)


def travel(monkeypatch, seconds):
    monkeypatch.setattr(clock, "shift_seconds", clock.shift_seconds + seconds)


def pause_of(connection, key="api"):
    return connection.execute(
        "SELECT paused_by, reason, round(date_part('epoch', paused_until - paused_at)) FROM pgqueue_pause "
        "WHERE kind = 'limit' AND name = %s",
        [key],
    ).fetchone()


def open_keys(connection):
    return [key for (key,) in connection.execute("SELECT limit_key FROM pgqueue_open_breaker ORDER BY 1")]


def opened(connection):
    return pause_of(connection) is not None and open_keys(connection) == ["api"]


# ------------------------------------------------------------------ when it opens


def test_breaker_opens_exactly_at_its_threshold(engine, process):
    outcomes = ("fff", "sff", "ffff", "ssff", "sssff")  # too few attempts, too few, all fail, exactly half, less
    for number, outcome in enumerate(outcomes):
        process.run(f"keyed:{number}", outcome)
    assert open_keys(engine) == ["keyed:2", "keyed:3"]
    others = [add(engine, f"keyed:{number}")[0] for number in range(5)]
    assert sorted(process.take(engine)) == [others[0], others[1], others[4]]


def test_share_is_compared_as_a_decimal(engine):
    """As a binary number, 0.07 of 100 is more than 7."""
    assert 0.07 * 100 > 7
    breakers.add_counts(engine, {"api": Ended(93, 7)})
    breaker = Breaker(failures=0.07, attempts=100)
    assert breakers.failing_keys(engine, {"api": breaker}) == ["api"]
    with engine.transaction():
        [opened], _ = breakers.open_breakers(engine, {"api": Suspect(breaker)})
    assert opened == ("api", False, 100, 7)


def test_attempts_before_the_window_do_not_count(engine, process, monkeypatch):
    process.run("api", "fff")
    travel(monkeypatch, 59)
    process.run("api", "s")
    assert not opened(engine)
    travel(monkeypatch, 2)
    process.run("api", "f")
    assert not opened(engine)
    process.run("api", "sf")
    assert opened(engine)


def test_open_breaker_pauses_its_key_only_and_says_why(engine, process, caplog):
    with caplog.at_level(logging.WARNING, logger="django_pgqueue.worker"):
        process.run("keyed:a", "sfff")
    assert pause_of(engine, "keyed:a") == ("circuit breaker", "3 of 4 attempts failed in 60 s", 30.0)
    [record] = caplog.records
    assert (record.event, record.limit_key, record.pause_seconds) == ("breaker_opened", logged("keyed:a"), 30)
    add(engine, "keyed:a")
    [other] = add(engine, "keyed:b")
    assert process.take(engine) == [other]


def test_two_processes_add_up_their_counts(engine, second, process):
    other = Process(second)
    process.run("api", "ff")
    assert not opened(engine)
    other.run("api", "ff")
    assert opened(engine)


def test_two_processes_open_a_breaker_once(engine, second, gates, monkeypatch):
    """Both have found the threshold. The second one waits for nothing, tries again, and finds it open."""
    monkeypatch.setattr(breakers, "LOCK_TIMEOUT", "30s")  # the gate is a lock, too
    breakers.add_counts(engine, {"api": Ended(0, 9)})
    processes = [Process(engine), Process(second)]
    for each in processes:
        each.counter._add("api", Ended(failed=1))
    with gates("OPEN_BREAKERS", engine, lambda: processes[0].counter.write(engine)) as opening:
        processes[1].counter.write(second)
        assert processes[1].counter.due_in_seconds <= module.RETRY_SECONDS
    opening.result()
    before = engine.execute("SELECT opened_at, after_execution_id FROM pgqueue_open_breaker").fetchall()
    helpers.wait_until(lambda: processes[1].counter.write(second) or not processes[1].counter)
    assert engine.execute("SELECT opened_at, after_execution_id FROM pgqueue_open_breaker").fetchall() == before
    assert pause_of(engine)[0] == "circuit breaker"


def test_claim_after_the_opening_obeys_it_whatever_the_last_scan_found(engine, second, process):
    add(engine, "api", 6)
    jobs = process.start(4)
    other = Process(second)
    other.scan(second)
    process.end(jobs, fails=True, delay_seconds=None)
    assert other.claim(second, LANE, limit=9, **OPTIONS) == []


@pytest.mark.parametrize(
    ("breaker", "exception", "exception_class", "counts"),
    [
        (BREAKER, KeyError(), "", True),
        (BREAKER, TaskTimeout(), "", True),
        (BREAKER, Retry(60), "", False),
        (BREAKER, Dead("no"), "", False),
        (BREAKER, None, "", True),
        (BREAKER, None, "not.loaded.Error", True),
        (BREAKER, None, "django_pgqueue.exceptions.Retry", False),
        (NETWORK, ConnectionError(), "", True),
        (NETWORK, KeyError(), "", False),
        (NETWORK, TaskTimeout(), "", False),
        (NETWORK, None, "builtins.TimeoutError", True),
        (NETWORK, None, "builtins.KeyError", False),
        (NETWORK, None, "builtins.print", False),
        (NETWORK, None, "not.loaded.Error", False),
        (NETWORK, None, "", False),
    ],
)
def test_failure_counts_by_its_exception(breaker, exception, exception_class, counts):
    """Without an exception, it is in another process, or the process was lost."""
    assert breaker.counts(exception, exception_class) is counts


def test_failures_that_do_not_count_open_nothing(engine, process):
    process.run("network", "ff", exception=KeyError())
    assert open_keys(engine) == []
    process.run("network", "ff", exception=TimeoutError())
    assert open_keys(engine) == ["network"]


def test_endings_that_are_no_failures_do_not_count(engine, process):
    add(engine, "api", 3)
    endings = (Ending.SNOOZED, Ending.RELEASED, Ending.CANCELLED)
    reports = [report(job, fails=True, ending=ending) for job, ending in zip(process.start(), endings, strict=True)]
    finish(engine, reports, process.reactions)
    assert not process.counter


def test_limits_without_a_breaker_are_not_counted(engine, process):
    process.run("plain:a", "ff")
    assert not process.counter
    assert helpers.rows_of(engine, "pgqueue_breaker_count") == {}


# ------------------------------------------------------------------ probes


@pytest.fixture
def half_open(process, monkeypatch):
    """Return a process after the pause of a breaker, with nine waiting jobs."""
    process.run("keyed:a", "ffff")
    add(process.connection, "keyed:a", 9)
    assert process.start() == []
    travel(monkeypatch, 31)
    return process


@pytest.mark.promise("breaker-probes")
def test_after_the_pause_one_job_at_a_time_runs_over_two_sessions(engine, second, half_open):
    other = Process(second)
    [probe] = half_open.start()
    assert probe.is_probe
    assert (half_open.start(), other.start()) == ([], [])
    half_open.end([probe], fails=True, ending=Ending.RELEASED)
    [probe] = other.start()
    assert (half_open.start(), other.start()) == ([], [])


def test_success_of_the_probe_closes_the_breaker(engine, half_open, caplog):
    with caplog.at_level(logging.INFO, logger="django_pgqueue.worker"):
        half_open.end(half_open.start(), fails=False)
    assert [record.event for record in caplog.records] == ["breaker_probed", "breaker_closed"]
    assert (open_keys(engine), pause_of(engine, "keyed:a")) == ([], None)
    assert len(half_open.start()) == 8
    assert helpers.rows_of(engine, "pgqueue_breaker_count") == {}


def test_end_of_the_probe_waits_for_a_claim_of_its_key(engine, second, half_open, monkeypatch):
    """The fetcher of the same process often has the lock, and would start the next job at once."""
    monkeypatch.setattr(module, "PROBE_SECONDS", 10.0)
    probes = half_open.start()
    second.execute("BEGIN")
    limits.lock_keys(second, ["keyed:a"])
    claim = threading.Timer(0.05, second.execute, ["COMMIT"])
    claim.start()
    half_open.end(probes, fails=False)
    claim.join()
    assert open_keys(engine) == []


def test_failure_of_the_probe_pauses_the_key_again(engine, half_open, monkeypatch):
    half_open.end(half_open.start(), fails=True)
    assert pause_of(engine, "keyed:a") == ("circuit breaker", "the job that probed the key failed", 30.0)
    assert half_open.start() == []
    travel(monkeypatch, 31)
    assert len(half_open.start()) == 1


@pytest.mark.promise("defect-probe-moves-opening")
def test_failed_probe_keeps_the_first_opening_and_is_counted(engine, half_open, monkeypatch):
    """The pause and its reason are those of the latest probe."""
    first = engine.execute("SELECT opened_at FROM pgqueue_open_breaker").fetchall()
    for probes in (1, 2):
        half_open.end(half_open.start(), fails=True)
        row = "SELECT opened_at, probes_failed, probed_at - opened_at > interval '20 s' FROM pgqueue_open_breaker"
        assert engine.execute(row).fetchall() == [(*first[0], probes, True)]
        travel(monkeypatch, 31)
    breakers.prune_breakers(engine, 60.0)
    assert open_keys(engine) == ["keyed:a"], "it was probed a moment ago"
    half_open.end(half_open.start(), fails=False)
    assert open_keys(engine) == []


def test_failures_before_the_opening_do_not_count_after_the_closing(engine, half_open, monkeypatch):
    half_open.end(half_open.start(), fails=False)
    half_open.run("keyed:a", "fff")
    assert open_keys(engine) == []


@pytest.mark.promise("breaker-probes")
def test_jobs_that_ran_when_the_breaker_opened_decide_nothing(engine, process, monkeypatch):
    add(engine, "api", 9)
    failing, succeeding, late = (jobs := process.start())[:4], jobs[4:6], jobs[6:]
    process.end(failing, fails=True, delay_seconds=None)
    assert opened(engine)
    process.end(succeeding, fails=False)
    assert opened(engine)
    travel(monkeypatch, 31)
    before = pause_of(engine)
    process.end(late[:1], fails=True, delay_seconds=None)
    # Even if they were taken for probes, the database knows when they were claimed.
    process.end([late[1]._replace(is_probe=True)], fails=True, delay_seconds=None)
    process.end([late[2]._replace(is_probe=True)], fails=False)
    assert opened(engine) and pause_of(engine) == before
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_breaker_count") == 0


def test_probe_waits_for_jobs_that_still_run(engine, process, monkeypatch):
    add(engine, "keyed:a", 8)
    jobs = process.start(5)
    process.end(jobs[:4], fails=True, delay_seconds=None)
    travel(monkeypatch, 31)
    assert process.start() == []
    process.end(jobs[4:], fails=True, delay_seconds=None)
    assert len(process.start()) == 1


def test_operators_resume_lets_a_job_probe_at_once(engine, process):
    process.run("api", "ffff")
    add(engine, "api", 3)
    assert process.start() == []
    assert lifecycle_pauses.resume(engine, Pausable.LIMIT, "api")
    [probe] = process.start()
    process.end([probe], fails=False)
    assert len(process.start()) == 2


@pytest.mark.promise("breaker-operator")
def test_pause_of_an_operator_stays(engine, process):
    pauses = {"keyed:a": None, "keyed:b": 3600, "keyed:c": 20}  # a breaker's pause is 30 s
    for key in pauses:
        add(engine, key, 4)
    jobs = process.start()
    for key, for_seconds in pauses.items():
        lifecycle_pauses.pause(engine, Pausable.LIMIT, key, for_seconds=for_seconds, paused_by="ada", reason="audit")
    before = [pause_of(engine, key) for key in pauses]
    process.end(jobs, fails=True, delay_seconds=None)
    assert open_keys(engine) == list(pauses)
    with engine.transaction():
        again, _ = breakers.open_breakers(engine, dict.fromkeys(pauses, Suspect(BREAKER, 1_000_000)))
        assert [each.is_again for each in again] == [True] * 3
        assert [pause_of(engine, key) for key in pauses] == before
        engine.execute("UPDATE pgqueue_open_breaker SET after_execution_id = 0")
        assert len(breakers.close_breakers(engine, dict.fromkeys(pauses, 1_000_000)).done) == 3
    assert [pause_of(engine, key) for key in pauses] == before


def test_completions_do_not_wait_for_the_transaction_of_an_operator(engine, second, process, monkeypatch):
    """The operator's pause is not committed. Its row makes the opening wait, which tries again a second later."""
    add(engine, "api", 4)
    jobs = process.start()
    with second.transaction():
        lifecycle_pauses.pause(second, Pausable.LIMIT, "api", paused_by="ada")
        began = time.monotonic()
        with monkeypatch.context() as patch:
            helpers.Clock(patch, module)
            process.end(jobs, fails=True, delay_seconds=None)
            assert 0.5 < process.counter.due_in_seconds <= 1.0
        assert time.monotonic() - began < helpers.LOCK_WAIT_SECONDS / 2
    assert open_keys(engine) == []
    process.counter._due_at = 0.0
    process.counter.write(engine)
    assert (open_keys(engine), pause_of(engine)[0]) == (["api"], "ada")


def test_pause_of_an_operator_that_has_ended_is_replaced(engine, process, monkeypatch):
    lifecycle_pauses.pause(engine, Pausable.LIMIT, "api", for_seconds=5, paused_by="ada")
    travel(monkeypatch, 6)
    process.run("api", "ffff")
    assert pause_of(engine)[0] == "circuit breaker"


def test_override_of_an_operator_counts_again_after_the_closing(engine, half_open):
    override(engine, "keyed:a", concurrency=3)
    [probe] = half_open.start()
    half_open.end([probe], fails=False)
    assert len(half_open.start()) == 3
    assert helpers.scalar(engine, "SELECT concurrency FROM pgqueue_limit_override") == 3


def test_open_breaker_that_the_code_has_no_more_limits_nothing(engine, half_open, monkeypatch):
    without = {**LIMITS, "keyed": Limit("keyed", key="{key}", concurrency=10)}
    monkeypatch.setattr(registry, "_limits", MappingProxyType(without))
    assert len(half_open.start()) == 9


def test_restarted_ids_of_executions_do_not_keep_a_breaker_open(engine, half_open):
    engine.execute("UPDATE pgqueue_open_breaker SET after_execution_id = 1000000000000")
    half_open.end(half_open.start(), fails=True)
    assert pause_of(engine, "keyed:a")[1] == "the job that probed the key failed"
    engine.execute("UPDATE pgqueue_open_breaker SET after_execution_id = 1000000000000")
    lifecycle_pauses.resume(engine, Pausable.LIMIT, "keyed:a")
    half_open.end(half_open.start(), fails=False)
    assert open_keys(engine) == []


# ------------------------------------------------------------------ crashes


def test_jobs_of_a_crashed_process_count(engine, process):
    add(engine, "api", 4)
    jobs = process.start()
    engine.execute("UPDATE pgqueue_execution SET lease_expires_at = '2001-01-01'")
    link = Link("default", "maintenance")
    maintenance = Maintenance(link, reactions=process.reactions)
    helpers.rescue_by(maintenance)
    link.close()
    process.counter.write(engine)
    assert len(jobs) == 4 and opened(engine)


def test_crash_of_the_probe_pauses_the_key_again(engine, half_open):
    [probe] = half_open.start()
    wakes = []
    half_open.counter._wake = lambda: wakes.append(1)
    link = Link("default", "settlement")
    assert settle(link, dead_process({probe.execution_id}), half_open.reactions, by_default=True)
    link.close()
    half_open.counter.write(engine)
    assert pause_of(engine, "keyed:a")[1] == "the job that probed the key failed"
    assert wakes == [1]


@pytest.mark.promise("breaker-probes")
@pytest.mark.parametrize("fails", [False, True])
def test_next_probe_decides_after_the_crash_of_a_probe(engine, half_open, monkeypatch, fails):
    """The settlement makes the job ready before it writes the counts, so another process may have claimed it already.

    Without its vote, the breaker of a key without further jobs would stay open although the job has succeeded.
    """
    [probe] = half_open.start()
    link = Link("default", "settlement")
    settling = Process(engine)
    assert settle(link, dead_process({probe.execution_id}), settling.reactions, by_default=True)
    link.close()
    [following] = half_open.start()
    settling.counter.write(engine)
    assert pause_of(engine, "keyed:a")[1] == "the job that probed the key failed"
    half_open.end([following], fails=fails)
    assert open_keys(engine) == (["keyed:a"] if fails else [])


def dead_process(suspects):
    """Return a worker process that has died while these executions were running."""

    class State:
        ended_by, exit_reason = 0, 0

        def ended_last(self):
            return set(), set()

        def unwritten(self):
            return set()

        def suspects(self):
            return suspects

    class Child:
        worker_id, overdue, expected_to_end, state = OPTIONS["worker_id"], (), False, State()

    return Child()


# ------------------------------------------------------------------ when it writes


def test_counts_are_written_once_a_second_and_probes_at_once(engine, process, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 60.0)
    process.run("api", "s")
    process.run("api", "s")
    assert helpers.scalar(engine, "SELECT sum(succeeded) FROM pgqueue_breaker_count") == 1
    assert 50 < process.counter.due_in_seconds <= 60
    add(engine, "api")
    [claimed] = process.start()
    process.end([claimed._replace(is_probe=True)], fails=True, delay_seconds=None)
    assert helpers.scalar(engine, "SELECT sum(succeeded) FROM pgqueue_breaker_count") == 2


def test_completer_decides_about_a_probe_before_it_frees_the_slot(half_open):
    """Otherwise the fetcher of this process would start the next job of the key, which would fail too."""
    link, states = Link("default", "completer"), []
    completer = Completer(
        link,
        half_open.reactions,
        breakers=half_open.counter,
        on_written=lambda reports: states.append(pause_of(half_open.connection, "keyed:a")[1]),
    )
    for job in half_open.start():
        completer.hand_over(report(job, fails=True))
    completer.tick()
    link.close()
    assert states == ["the job that probed the key failed"]


def test_completer_writes_counts_when_they_are_due(process, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.05)
    link = Link("default", "completer")
    completer = Completer(link, process.reactions, breakers=process.counter)
    add(process.connection, "api", 4)
    jobs = process.start()
    process.end(jobs[:1], fails=True, delay_seconds=None)
    finish(process.connection, [report(job, fails=True, delay_seconds=None) for job in jobs[1:]], process.reactions)
    helpers.wait_until(lambda: (completer.tick() <= 0.05, opened(process.connection))[1])
    assert completer.tick() > 1.0
    link.close()


def test_completer_writes_counts_that_are_not_due_when_it_stops(engine, process, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 60.0)
    process.run("api", "f")
    add(engine, "api", 3)
    finish(engine, [report(job, fails=True, delay_seconds=None) for job in process.start()], process.reactions)
    process.counter.write(engine)
    assert not opened(engine)
    completer = Completer(Link("default", "completer"), process.reactions, breakers=process.counter)
    completer.stop()
    completer.run()
    completer.link.close()
    assert pause_of(engine)[1] == "4 of 4 attempts failed in 60 s"


def test_counts_survive_a_lost_connection_and_are_added_once(engine, second, process, monkeypatch):
    process.counter._add("api", Ended(failed=9))
    second.close()
    with pytest.raises(psycopg.OperationalError):
        process.counter.write(second)
    failing = breakers.failing_keys
    monkeypatch.setattr(breakers, "failing_keys", lose)
    with pytest.raises(psycopg.OperationalError):
        process.counter.write(engine)
    monkeypatch.setattr(breakers, "failing_keys", failing)
    process.counter.write(engine)
    assert pause_of(engine)[1] == "9 of 9 attempts failed in 60 s"


def lose(*args):
    raise psycopg.OperationalError


def test_refused_counts_are_dropped_and_logged(engine, process, caplog):
    process.counter._add("api", Ended(failed=2**40))
    process.counter.write(engine)
    [record] = caplog.records
    assert (record.event, record.row_id) == ("row_refused", "api") and "is dropped" in record.message
    assert not process.counter


@pytest.mark.slow
def test_counts_are_kept_while_their_table_is_locked(engine, second, process):
    """The connection works, so the completions of other jobs must not wait."""
    process.counter._add("api", Ended(failed=9))
    with second.transaction():
        second.execute("LOCK TABLE pgqueue_breaker_count")
        process.counter.write(engine)
    process.counter.write(engine)
    assert pause_of(engine)[1] == "9 of 9 attempts failed in 60 s"


def test_counts_of_keys_without_a_breaker_cost_no_statement(process, engine, monkeypatch):
    """A process whose limits have no breaker reads and writes nothing for them."""
    monkeypatch.setattr(registry, "_limits", MappingProxyType({"plain": LIMITS["plain"]}))
    statements = []
    monkeypatch.setattr(limit_overrides, "controls_of", statements.append)
    monkeypatch.setattr(breakers, "add_counts", statements.append)
    monkeypatch.setattr(breakers, "prune_counts", statements.append)
    process.run("plain:a", "sf")
    [duty] = [kind for kind in DUTIES if kind.name == "breakers"]
    duty.start(SimpleNamespace(use=lambda: nullcontext(engine)), FOREGROUND)()
    assert statements == []


def test_prune_removes_old_counts_and_breakers_that_nothing_has_probed(engine, process, monkeypatch):
    process.run("api", "ffff")
    for _ in range(3):
        breakers.add_counts(engine, {"keyed:b": Ended(1)})
    travel(monkeypatch, 601)
    process.run("keyed:a", "ffff")
    breakers.add_counts(engine, {"keyed:b": Ended(1)})
    assert [breakers.prune_counts(engine, limit=2) for _ in range(3)] == [2, 1, 0]
    assert helpers.scalar(engine, "SELECT count(*) FROM pgqueue_breaker_count") == 1
    breakers.prune_breakers(engine, 600.0)
    assert open_keys(engine) == ["keyed:a"]
