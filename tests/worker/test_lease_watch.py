"""Test which leases count as lost, with a simulated clock: after deploys, and while commits hang."""

from __future__ import annotations

import math
import random
from contextlib import AbstractContextManager, suppress
from itertools import product

import pytest

from django_pgqueue.settings.conf import get_settings
from django_pgqueue.worker.maintenance.rescuer import LeaseWatch, limit_seconds, observed_from_seconds

ONLY = 1
"""The execution of these tests."""
STEP = 0.05


class Database:
    """The time, and the lease that committed statements show. Commits hang during stalls."""

    def __init__(self, *stalls: tuple[float, float]) -> None:
        self.now = 0.0
        self.stalls = stalls
        self.lease = 0.0
        self.hanging: tuple[float, float] | None = None
        """When a heartbeat that hangs commits, and its lease. Its session locks the execution until then."""

    def commits_at(self) -> float:
        """Return when a commit that begins now ends."""
        return max([end for start, end in self.stalls if start <= self.now < end], default=self.now)

    def go_to(self, now: float) -> None:
        self.now = now
        if self.hanging is not None and self.hanging[0] <= now:
            self.lease, self.hanging = self.hanging[1], None


class Host:
    """A supervisor that sends heartbeats until it dies. A session can hang for longer than the stall."""

    def __init__(self, database: Database, dies_at: float = math.inf, hangs_longer: float = 0.0) -> None:
        self.database, self.dies_at, self.hangs_longer = database, dies_at, hangs_longer
        self.due_at = 0.0

    def turn(self) -> None:
        database, settings = self.database, get_settings()
        if database.now < self.due_at or database.now >= self.dies_at:
            return
        self.due_at = database.now + settings.heartbeat_seconds
        if database.hanging is not None:  # another session of this host has locked the row, so this one skips it
            return
        ends_at = database.commits_at()
        if ends_at > database.now:
            database.hanging = (ends_at + self.hangs_longer, database.now + settings.LEASE)
            self.due_at += 1.0  # it gives up after a heartbeat, and tries again
        else:
            database.lease = database.now + settings.LEASE


class Rescuer:
    """A process that looks for lost leases from its start on. Its commits give up after half a lease."""

    def __init__(self, database: Database, starts_at: float, seed: int) -> None:
        self.database, self.starts_at, self.due_at = database, starts_at, starts_at
        self.watch = LeaseWatch(lambda: database.now)
        self.jitter = random.Random(seed)
        self.has_rescued = False
        self._lease = self._gives_up_at = 0.0
        self._commit: AbstractContextManager[None] | None = None

    def turn(self) -> None:
        if self.database.now < self.due_at:
            return
        if self._commit is None:
            self._begin()
        if self.database.commits_at() > self.database.now:
            if self.database.now > self._gives_up_at:
                self._end(OSError("no answer"))
            return
        self._end(None)
        lost = self.watch.lost({ONLY: self._lease})
        can_close = self.database.hanging is None and self.database.lease == self._lease < self.database.now
        self.has_rescued = bool(lost) and can_close

    def _begin(self) -> None:
        self._lease = self.database.lease
        if self._lease - self.database.now > observed_from_seconds():
            self.watch.forget()
        self._gives_up_at = self.database.now + get_settings().LEASE / 2
        self._commit = self.watch.commit()
        self._commit.__enter__()

    def _end(self, error: OSError | None) -> None:
        assert self._commit is not None
        with suppress(OSError):
            self._commit.__exit__(None if error is None else OSError, error, None)
        self._commit = None
        self.due_at = self.database.now + get_settings().RESCUE_INTERVAL * self.jitter.uniform(0.9, 1)


def rescued_at(database: Database, host: Host, rescuers: list[Rescuer], until: float) -> float:
    """Return when the execution was rescued; infinity if it was not. Each rescuer replaces the one before it."""
    for step in range(int(until / STEP)):
        database.go_to(step * STEP)
        host.turn()
        working = [rescuer for rescuer in rescuers if rescuer.starts_at <= database.now][-1:]
        for rescuer in working:
            rescuer.turn()
            if rescuer.has_rescued:
                return database.now
    return math.inf


def rescuers(database: Database, *starts: float) -> list[Rescuer]:
    return [Rescuer(database, starts_at, seed) for seed, starts_at in enumerate(starts)]


SETTINGS = [{}, {"LEASE": 8.0, "RESCUE_INTERVAL": 0.5}, {"LEASE": 20.0, "RESCUE_INTERVAL": 3.0}]


@pytest.mark.promise("lost-worker-jobs-return")
@pytest.mark.parametrize("pgqueue", SETTINGS)
def test_lost_host_is_rescued_within_the_limit_after_deploys(settings, pgqueue):
    settings.PGQUEUE = pgqueue
    lease_seconds, latest = get_settings().LEASE, 0.0
    for dies_at, deployed in product((0.1, 0.26, 0.4), (None, 0.2, 0.5, 0.9, 1.0, 1.05, 1.1)):
        database = Database()
        host = Host(database, dies_at * lease_seconds)
        starts = [0.0] if deployed is None else [0.0, (dies_at + deployed) * lease_seconds]
        found = rescued_at(database, host, rescuers(database, *starts), 4 * lease_seconds)
        assert database.lease < found, "a rescue before the end of the lease"
        latest = max(latest, found - host.dies_at)
    assert latest <= limit_seconds() + STEP
    assert latest > 1.4 * lease_seconds, "no deploy comes at the worst moment"


def test_limit_with_default_settings_is_100_seconds(settings):
    settings.PGQUEUE = {}
    assert limit_seconds() == 100.0


def test_lost_host_with_old_rescuer_is_rescued_within_65_s(settings):
    settings.PGQUEUE = {}
    for dies_at in (1.0, 10.0, 14.9, 25.0):
        database = Database()
        found = rescued_at(database, Host(database, dies_at), rescuers(database, 0.0), 300.0)
        assert found - dies_at <= 65.0 + STEP


@pytest.mark.promise("hanging-commits-lose-no-job")
@pytest.mark.parametrize("hangs_longer", [0.0, 3.0, 40.0])
@pytest.mark.parametrize("deployed", [None, 65.0, 130.0])
def test_leases_after_hanging_commits_are_extended_in_time(settings, hangs_longer, deployed):
    """The sessions of the host and of the rescuer can hang for different times."""
    settings.PGQUEUE = {}
    for begins_at, seconds in product((30.0, 34.0, 44.9), (5.0, 29.0, 61.0, 100.0)):
        database = Database((begins_at, begins_at + seconds))
        host = Host(database, hangs_longer=hangs_longer)
        starts = [0.0] if deployed is None else [0.0, deployed]
        assert rescued_at(database, host, rescuers(database, *starts), 300.0) == math.inf


def test_leases_with_repeated_short_stalls_are_extended(settings):
    settings.PGQUEUE = {}
    database = Database(*[(40.0 + 25 * number, 60.0 + 25 * number) for number in range(8)])
    assert rescued_at(database, Host(database), rescuers(database, 0.0), 300.0) == math.inf


@pytest.mark.promise("lost-worker-jobs-return")
def test_host_lost_while_commits_hang_is_rescued_in_time(settings):
    settings.PGQUEUE = {}
    for dies_at in (41.0, 80.0, 119.0):
        database = Database((40.0, 120.0))
        found = rescued_at(database, Host(database, dies_at), rescuers(database, 0.0), 400.0)
        assert database.lease < found <= 120.0 + limit_seconds()


def test_lease_watch_failed_look_counts_no_time(settings):
    settings.PGQUEUE = {}
    now = [0.0]
    watch = LeaseWatch(lambda: now[0])
    for _ in range(30):
        with watch.commit():
            pass
        assert not watch.lost({ONLY: 1.0})
        now[0] += 5.0
        watch.interrupted()


def test_lease_watch_frozen_process_counts_one_heartbeat(settings):
    settings.PGQUEUE = {}
    now = [0.0]
    watch = LeaseWatch(lambda: now[0])
    for expected in ({}, {}, {ONLY: 1.0}):
        with watch.commit():
            pass
        assert watch.lost({ONLY: 1.0}) == expected
        now[0] += 3600.0


def test_lease_watch_failed_commit_counts_no_time(settings):
    settings.PGQUEUE = {}
    now = [0.0]
    watch = LeaseWatch(lambda: now[0])
    for _ in range(20):
        with watch.commit():
            pass
        assert not watch.lost({ONLY: 1.0})
        now[0] += 5.0
        with suppress(OSError), watch.commit():
            raise OSError("no answer")
