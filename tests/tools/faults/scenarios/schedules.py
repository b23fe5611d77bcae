"""Schedules with killed workers, moved clocks and outages (F59 to F61)."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django_pgqueue.lifecycle import schedules
from tests.process.harness import Worker
from tests.tools.faults import ticks
from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run

from .machine import with_clock
from .storage import server_with_clock

SECONDS = float(os.environ.get("PGQUEUE_FAULTS_SCHEDULE_SECONDS", "20"))
"""The seconds that F59 runs for. Use 60 or more for a thorough run."""
KILL_SECONDS = 2.5
QUICK: dict[str, Any] = {"SCHEDULE_INTERVAL": 0.5}


@fault(
    "F59",
    "a schedule that fires every second, and three workers, one of which is killed and replaced every few seconds",
    invariant="each tick is fired once, and no tick is left out",
    expected="one job for each second",
)
def one_killed_after_the_other(run: Run) -> str:
    each = ticks.add(run, "each second", "every 1 second", missed="all")
    workers = [run.worker(**QUICK) for _ in range(3)]
    run.wait_until(lambda: ticks.of(run, each), what="the first tick")
    began, killed = time.monotonic(), 0
    while time.monotonic() < began + SECONDS:
        victim = workers.pop(run.random.randrange(3))
        victim.send_all(signal.SIGKILL)
        killed += 1
        workers.append(run.worker(ready=False, **QUICK))
        _wait_for_ticks(run, each, 1)
        time.sleep(max(0.0, began + killed * KILL_SECONDS - time.monotonic()))
    _wait_for_ticks(run, each, 2)
    fired = ticks.stop(run, each)
    seconds = (fired[-1] - fired[0]).total_seconds() + 1
    assert len(fired) == len(set(fired)) == seconds, f"{len(fired)} ticks in {seconds} seconds"
    assert seconds >= SECONDS
    latest = ticks.latest_seconds(run)
    return f"{len(fired)} jobs for {seconds:.0f} seconds, {killed} workers killed; {latest:.1f} s late at most"


def _wait_for_ticks(run: Run, schedule_id: int, more: int) -> None:
    before = len(ticks.of(run, schedule_id))
    run.wait_until(lambda: len(ticks.of(run, schedule_id)) >= before + more, what="another tick")


@fault(
    "F59b",
    "a worker is lost before, during and after it fires a tick; its session ends in the middle; the reply is lost",
    invariant="the tick, its job and the next tick are written together or not at all; each tick is fired once",
    expected="one job for each second",
    exclusive=True,
)
def lost_while_firing(run: Run) -> str:
    each = ticks.add(run, "each second", "every 1 second", missed="all")
    for point in ("fire.sent:killall:2", "fire.committed:killall:2"):
        lost = run.worker(failpoint=point, ready=False, **QUICK)
        run.wait_for("failpoint", name=point.partition(":")[0])
        lost.exit_code()
    deaf = run.worker(failpoint="fire.committed:close:*", **QUICK)
    _wait_for_ticks(run, each, 2)
    deaf.send_all(signal.SIGKILL)
    assert "database outage" in deaf.said, deaf.said
    worker = run.worker(**QUICK)
    _end_in_the_middle(run)
    _wait_for_ticks(run, each, 2)
    _lose_in_its_commit(run, each, worker)
    run.worker(**QUICK)
    _wait_for_ticks(run, each, 2)
    fired = ticks.stop(run, each)
    seconds = (fired[-1] - fired[0]).total_seconds() + 1
    assert len(fired) == len(set(fired)) == seconds, f"{len(fired)} ticks in {seconds} seconds"
    return f"{len(fired)} jobs for {seconds:.0f} seconds"


def _end_in_the_middle(run: Run) -> None:
    """Terminate a session whose FIRE has locked the schedule's row and waits for the table of ticks."""
    waits = (
        "SELECT pid FROM pg_stat_activity WHERE query LIKE '%pgqueue:fire%' AND wait_event_type = 'Lock'"
        " AND datname = current_database()"
    )
    with run.connect() as migration, migration.transaction():
        migration.execute("LOCK TABLE pgqueue_schedulerun IN ACCESS EXCLUSIVE MODE")
        run.wait_until(lambda: run.sql(waits), what="a FIRE to wait for the table")
        run.sql(f"SELECT pg_terminate_backend(pid) FROM ({waits}) AS waiting")


def _lose_in_its_commit(run: Run, each: int, worker: Worker) -> None:
    """Kill a worker whose FIRE is committed on the server's disk and waits for a missing standby."""
    waits = (
        "SELECT pid FROM pg_stat_activity AS session WHERE wait_event = 'SyncRep' AND datname = current_database()"
        " AND EXISTS (SELECT FROM pg_locks WHERE pid = session.pid AND mode = 'RowExclusiveLock'"
        " AND relation = 'pgqueue_schedulerun'::regclass)"
    )
    run.configure("synchronous_standby_names", "nobody")
    run.wait_until(lambda: run.sql(waits), what="a FIRE to wait for its commit")
    before = ticks.of(run, each)
    worker.send_all(signal.SIGKILL)
    worker.exit_code()
    assert ticks.of(run, each) == before, "the tick is visible before its commit"
    run.configure("synchronous_standby_names", None)


# ------------------------------------------------------------------------------- clocks


class Clock:
    """Sets the clock of the database server."""

    def __init__(self, stamp: Path) -> None:
        self.stamp = stamp

    def set(self, instant: datetime) -> None:
        """Set the clock. The file is replaced in one step, because a reader must not find it empty."""
        new = self.stamp.with_suffix(".new")
        new.write_text(f"{instant.timestamp() - time.time():+.3f}")
        new.replace(self.stamp)


def utc(*numbers: int) -> datetime:
    """Return a time in UTC."""
    return datetime(*numbers, tzinfo=UTC)  # type: ignore[arg-type,misc]  # year, month, day, hour, minute, second


SPRING, AUTUMN = utc(2027, 3, 28, 1, 0), utc(2027, 10, 31, 0, 30)
"""2:30 in Berlin on the nights when its clocks change.

In spring this time does not exist, so the tick is at 3:00. In autumn it exists twice, and the tick is at the first.
"""
NIGHT: dict[str, Any] = {"time_zone": "Europe/Berlin", "missed": "skip"}
WEEK_SECONDS = 7 * 86_400.0


@fault(
    "F60",
    "the nights of the clock changes, on a database whose clock is moved, with workers whose clocks are an hour wrong",
    invariant="a nightly job runs once; quarter-hour ticks follow elapsed time; a new time zone takes effect at once",
    expected="1 run in spring, at 3:00; 1 in autumn, in the first hour, even if the clock goes back; 1 in the new zone",
    needs=("faketime",),
    exclusive=True,
)
def clocks_change(run: Run) -> str:
    server, stamp = run.enter(server_with_clock())
    run.move_to(server)
    run.rules = run.rules._replace(retention_seconds=WEEK_SECONDS)
    clock = Clock(stamp)
    clock.set(SPRING - timedelta(minutes=50))
    night = ticks.add(run, "night", "30 2 * * *", **NIGHT)
    quarter = ticks.add(run, "quarter", "*/15 * * * *", **NIGHT)
    for skew in ("+1h", "-1h"):
        run.worker(variables=with_clock(FAKETIME=skew), SCHEDULE_INTERVAL=0.2)
    passed = _pass_by(run, clock, quarter, SPRING - timedelta(minutes=45), 8)
    assert ticks.of(run, night) == [SPRING], ticks.of(run, night)
    assert ticks.next_of(run, night) == utc(2027, 3, 29, 0, 30)
    passed += _pass_by(run, clock, quarter, AUTUMN - timedelta(minutes=15), 7)
    assert ticks.of(run, night) == [SPRING, AUTUMN], ticks.of(run, night)
    clock.set(AUTUMN - timedelta(seconds=0.5))
    run.wait_until(lambda: ticks.next_of(run, quarter) == AUTUMN + timedelta(minutes=15), what="the clock to go back")
    assert ticks.of(run, night) == [SPRING, AUTUMN], "fired again"
    _change_zone(run, night)
    moved = utc(2027, 10, 31, 6, 30)
    passed += _pass_by(run, clock, quarter, moved, 1) + _pass_by(run, clock, quarter, utc(2027, 11, 1, 1, 30), 1)
    assert ticks.of(run, night) == [SPRING, AUTUMN, moved], ticks.of(run, night)
    assert ticks.of(run, quarter) == passed
    run.wait_until_done()
    return f"1, 1 and 1 nightly runs; {len(passed)} of {len(passed)} quarter-hour ticks"


def _pass_by(run: Run, clock: Clock, quarter: int, first: datetime, count: int) -> list[datetime]:
    """Set the clock to just before each of `count` quarter-hour ticks; wait until it is fired and its jobs have run.

    Return the ticks.
    """
    passed = [first + number * timedelta(minutes=15) for number in range(count)]
    for tick in passed:
        clock.set(tick - timedelta(seconds=0.5))
        run.wait_until(lambda tick=tick: tick in ticks.of(run, quarter), what=f"the tick of {tick}")  # type: ignore[misc]
        run.wait_until(lambda: not run.unfinished(), what="its jobs to end")
    return passed


def _change_zone(run: Run, night: int) -> None:
    """Change the time zone as the admin's form does."""
    to = ticks.definition("night", "30 2 * * *", **NIGHT | {"time_zone": "America/New_York"})
    revision = run.scalar("SELECT revision FROM pgqueue_schedule WHERE id = %s", [night])
    first = utc(2027, 10, 31, 6, 30)
    assert schedules.change_schedule(run.connection, night, to, revision=revision, next_run_at=first, tries=True)


@fault(
    "F61",
    "the only worker is lost, and three hours later two workers start at the same time",
    invariant="one of the two workers fires the missed ticks that the schedule requires",
    expected=(
        '`missed="latest"`: 1 of 17 ticks. `missed="all"`: 17 of 17, and the last 100 ticks of a schedule that fires '
        'every minute. `missed="skip"`: 0, except a tick that is only seconds late'
    ),
    needs=("faketime",),
    exclusive=True,
)
def nobody_for_three_hours(run: Run) -> str:
    server, stamp = run.enter(server_with_clock())
    run.move_to(server)
    clock = Clock(stamp)
    nine, noon = utc(2027, 1, 4, 9, 10), utc(2027, 1, 4, 12, 5, 30)
    clock.set(nine - timedelta(minutes=5))
    ten = {rule: ticks.add(run, rule, "every 10 minutes", missed=rule) for rule in ("latest", "all", "skip")}
    minute = ticks.add(run, "each minute, all", "* * * * *", missed="all")
    late = ticks.add(run, "each minute, skip", "* * * * *", missed="skip")
    lost = run.worker(SCHEDULE_INTERVAL=0.2)
    clock.set(nine - timedelta(seconds=0.5))
    run.wait_until(lambda: all(nine in ticks.of(run, one) for one in (*ten.values(), minute, late)), what="9:10")
    run.wait_until(lambda: not run.unfinished(), what="its jobs to end")
    lost.send_all(signal.SIGKILL)
    before = {one: len(ticks.of(run, one)) for one in (*ten.values(), minute, late)}
    clock.set(noon)
    for _ in range(2):
        run.worker(ready=False, SCHEDULE_INTERVAL=0.2)
    run.wait_until(
        lambda: all(ticks.next_of(run, one) > noon for one in before), what="the ticks until 12:05 to be handled"
    )
    made = {one: len(ticks.of(run, one)) - count for one, count in before.items()}
    assert [made[ten[rule]] for rule in ("latest", "all", "skip")] == [1, 17, 0], made
    assert ticks.of(run, ten["latest"])[-1] == noon.replace(minute=0, second=0)
    assert (made[minute], made[late]) == (100, 1), made
    after = utc(2027, 1, 4, 12, 10)
    clock.set(after - timedelta(seconds=0.5))
    run.wait_until(lambda: all(after in ticks.of(run, one) for one in before), what="12:10")
    run.wait_until_done()
    return (
        "latest: 1 of 17; all: 17 of 17, and the last 100 of the schedule that fires every minute; skip: 0, except the"
        " 1 tick that was 30 s late; afterwards every tick"
    )
