"""A long run of five hosts under load with one random fault of a host or the primary after another: `--soak-hosts`.

Each round injects one fault, waits until the fleet has recovered, and puts back what was lost: a worker on the host, a
standby behind the new primary. The checker reads the whole history at the end. The seed repeats the choice.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

from tests.tools.faults import checker, host_faults
from tests.tools.faults.fleet import Fleet
from tests.tools.faults.host_faults import Recovery
from tests.tools.faults.run import Run
from tests.tools.faults.scenarios.hosts import next_release
from tests.tools.faults.suite import Suite

LEASE_SECONDS: Final = 8.0


class HostsSoak:
    """The faults of the soak, and what each left to be put back."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.fleet = Fleet(run, LEASE_SECONDS)
        self.tree = next_release(run)
        self.is_migrated = False
        self.faults: dict[str, Callable[[], Recovery]] = {
            "partition": lambda: host_faults.partition(self.fleet, self._one()),
            "short partitions": self._short_partitions,
            "host lost": self._host_lost,
            "primary killed": lambda: self._primary_lost(isolate=False),
            "primary isolated": lambda: self._primary_lost(isolate=True),
            "deploy": self._deploy,
        }

    def _one(self) -> Any:
        return self.run.random.choice(self.fleet.hosts)

    def _short_partitions(self) -> Recovery:
        return host_faults.short_partitions(self.fleet, *self.run.random.sample(self.fleet.hosts, 2))

    def _host_lost(self) -> Recovery:
        host = self._one()
        recovery = host_faults.lose_host(self.fleet, host)
        self.fleet.start(host)
        return recovery

    def _primary_lost(self, *, isolate: bool) -> Recovery:
        recovery = host_faults.lose_primary(self.fleet, isolate=isolate)
        self.fleet.pair.replace_standby()
        return recovery

    def _deploy(self) -> Recovery:
        hosts = self.run.random.sample(self.fleet.hosts, len(self.fleet.hosts))
        early = 0 if self.is_migrated else 2
        self.is_migrated = True
        return host_faults.deploy(self.fleet, self.tree, early=hosts[:early], late=hosts[early:])[0]


def soak_hosts(shared: Suite, minutes: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Run for so long; return the figures, `violations` among them (an empty list is what it has to be)."""
    run = Run(shared, "soak-hosts")
    try:
        return _soaked(run, minutes, say)
    except BaseException:
        run.abandon()  # else its processes and namespaces outlive this one
        raise


def _soaked(run: Run, minutes: float, say: Callable[[str], None]) -> dict[str, Any]:
    crew = HostsSoak(run)
    measured: list[Recovery] = []
    left: list[str] = []
    end = time.monotonic() + 60 * minutes
    while time.monotonic() < end:
        left = left or run.random.sample([*crew.faults], len(crew.faults))  # each one once, before any comes again
        name = left.pop()
        run.note("fault", name=name)
        measured.append(crew.faults[name]())
        say(f"soak: {max(0.0, end - time.monotonic()):5.0f} s left: {name}: {measured[-1]}")
    ending = crew.fleet.finish()
    history, violations = run.close()
    summary = checker.summary(history)
    return {
        "minutes": minutes,
        "ending": ending,
        "recoveries": [recovery._asdict() for recovery in measured],
        "overlaps": summary["overlaps"],
        "ticks": summary["ticks"],
        "limited": summary["limited"],
        "violations": [str(violation) for violation in violations],
        "stuck": 0,
    }


def lines(figures: dict[str, Any]) -> list[str]:
    """The figures as text, with the recoveries as a table of a page."""
    by_fault: dict[str, list[Recovery]] = defaultdict(list)
    for each in figures["recoveries"]:
        by_fault[each["fault"]].append(Recovery(**each))
    return [
        f"soak: {figures['minutes']:g} min, {figures['ending']}",
        f"soak: {figures['overlaps']} overlaps after a rescue, {figures['ticks']} ticks",
        f"soak: starts of jobs with a limit {figures['limited']}",
        *table(by_fault),
        f"soak: {len(figures['violations'])} violations",
        *figures["violations"][:50],
    ]


def table(by_fault: dict[str, list[Recovery]]) -> list[str]:
    """Return a table of recoveries: the range of each figure."""
    names = ("rescued", "first", "last", "back", "before", "during", "after")
    head = ["fault", "times", "rescued", "first (s)", "last (s)", "host back (s)", "jobs/s before", "during", "after"]
    rows = [
        [fault, str(len(each)), *(_range([getattr(one, name) for one in each]) for name in names)]
        for fault, each in sorted(by_fault.items())
    ]
    return [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]


def _range(values: list[float | None]) -> str:
    known = sorted(value for value in values if value is not None)
    if not known:
        return ""
    low, high = (f"{round(value, 1):g}" for value in (known[0], known[-1]))
    return low if low == high else f"{low} to {high}"
