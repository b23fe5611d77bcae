"""Faults of several hosts: each function injects one into a fleet, undoes it, and returns what it measured."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from tests.deploys import trees
from tests.process.harness import environment
from tests.tools.faults.fleet import Fleet, Host
from tests.tools.faults.run import SETTINGS_MODULE

DETECT_SECONDS: Final = 2.0
"""How long somebody needs to see that the primary is lost, and to decide on the promotion."""
STOP_SECONDS: Final = 30.0
PATIENCE_SECONDS: Final = 90.0


class Recovery(NamedTuple):
    """What was measured: seconds, and completed jobs per second."""

    fault: str
    rescued: int
    first: float | None
    """From the fault (or from the promotion) to the first rescued job that runs (or to the first completion)."""
    last: float | None
    back: float | None
    """From the end of the fault until the host completes a job."""
    before: float
    during: float
    after: float

    def __str__(self) -> str:
        times = {"first": self.first, "last": self.last, "host back": self.back}
        words = [f"{name} after {seconds:.1f} s" for name, seconds in times.items() if seconds is not None]
        rates = f"{self.before:.1f} jobs/s before, {self.during:.1f} during, {self.after:.1f} after"
        return "; ".join([f"{self.rescued} rescued", *words, rates])


def partition(fleet: Fleet, host: Host) -> Recovery:
    """Cut a host off for longer than its leases: the others rescue its jobs, and its completions come too late.

    A process that also runs a job that waits for the network would exit with its leases, and send no late completion.
    """
    fleet.warm_up()
    gate, found = fleet.occupy(host)
    before = fleet.calm()
    fleet.wait_until_only(host, found[host])
    with host.machine.partitioned():
        cut = time.time()
        gate.touch()  # the bodies end on both sides of the cut
        times = fleet.run_again(found[host], cut, PATIENCE_SECONDS)
        time.sleep(max(0.0, cut + 2 * fleet.lease_seconds - time.time()))
        during = fleet.rate(cut, time.time())
    back = fleet.wait_until_works(host, time.time())
    return Recovery("partition", len(times), times[0], times[-1], back, before, during, fleet.calm())


def short_partitions(fleet: Fleet, first: Host, second: Host) -> Recovery:
    """Cut two hosts off, the second while the first still is, each for a third of a lease: nobody loses a lease."""
    gate, _ = fleet.occupy(first, second, each=2)
    before, seconds = fleet.calm(), fleet.lease_seconds / 3
    began, crashed = time.time(), _crashed(fleet)
    with contextlib.ExitStack() as later:
        with first.machine.partitioned():
            time.sleep(seconds / 2)
            later.enter_context(second.machine.partitioned())
            time.sleep(seconds / 2)
        time.sleep(seconds / 2)
    healed = time.time()
    during = fleet.rate(began, healed)
    gate.touch()
    back = max(fleet.wait_until_works(host, healed) for host in (first, second))
    time.sleep(fleet.lease_seconds)
    rescued = _crashed(fleet) - crashed
    return Recovery("short partitions", rescued, None, None, back, before, during, fleet.calm())


def _crashed(fleet: Fleet) -> int:
    return int(fleet.run.outcomes().get("crashed", 0))


def lose_primary(fleet: Fleet, *, isolate: bool) -> Recovery:
    """Kill the primary, or cut it off from everybody, and promote the standby.

    An isolated primary is stopped before its network is back, as the documentation requires.
    """
    primary, before = fleet.pair.old, fleet.calm()
    lost = time.time()
    if isolate:
        primary.machine.cut()
    else:
        primary.cluster.kill()
    time.sleep(DETECT_SECONDS)
    fleet.pair.promote()
    promoted = time.time()
    first = fleet.first_done(promoted, PATIENCE_SECONDS)
    last = max(fleet.wait_until_works(host, promoted, PATIENCE_SECONDS) for host in fleet.hosts)
    during = fleet.rate(lost, time.time())
    if isolate:
        primary.cluster.stop("immediate")
        primary.machine.heal()
    after = fleet.calm()
    assert all(host.running.process.poll() is None for host in fleet.hosts), "a supervisor has exited"
    return Recovery(f"primary {'isolated' if isolate else 'killed'}", 0, first, last, None, before, during, after)


def lose_host(fleet: Fleet, host: Host) -> Recovery:
    """Lose a host without a word: its network first, then all its processes."""
    _, found = fleet.occupy(host)
    before = fleet.calm()
    with host.machine.partitioned():
        lost = time.time()
        host.machine.kill()
        times = fleet.run_again(found[host], lost, PATIENCE_SECONDS)
        for gate in fleet.run.where.glob("gate-*"):
            gate.touch()
        during = fleet.rate(lost, time.time())
        host.running.end()
    after = fleet.calm()
    return Recovery("host lost", len(times), times[0], times[-1], None, before, during, after)


# ------------------------------------------------------------------------------- deploys


def restart(fleet: Fleet, host: Host, tree: Path | None, *, wait: bool = True) -> float:
    """Stop a host's worker by SIGTERM, and start the release of a tree there; return how long the stop took."""
    began = time.monotonic()
    code = fleet.run.stop(host.running, signal.SIGTERM, STOP_SECONDS)
    took = time.monotonic() - began
    assert code == 0, f"{host.machine.label} exited with {code}:\n{host.running.said[-3000:]}"
    host.tree = tree
    fleet.start(host, wait=wait)
    return took


def wait_for_words(host: Host, words: str) -> None:
    """Wait until the log of a host's worker contains these words."""
    host.running.wait_until(lambda: words in host.running.said, 30)


def migrate(fleet: Fleet, tree: Path) -> float:
    """Run `migrate` of a release; return how long it took."""
    began = time.monotonic()
    done = subprocess.run(
        [*fleet.application.prefix, sys.executable, "-m", "django", "migrate", "-v0"],
        env=environment(fleet.run.settings) | trees.path_to(tree) | {"DJANGO_SETTINGS_MODULE": SETTINGS_MODULE},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return time.monotonic() - began


def deploy(fleet: Fleet, tree: Path, *, early: Iterable[Host], late: Iterable[Host]) -> tuple[Recovery, float]:
    """Restart one host after the other with the code of a release, and migrate when the `early` ones are restarted.

    Workers of the new release wait for the migration, so the early hosts do nothing until then. The second figure is
    the duration of the migration.
    """
    early, late = list(early), list(late)
    before, crashed, began = fleet.calm(), _crashed(fleet), time.time()
    for host in early:
        restart(fleet, host, tree, wait=False)
    for host in early:
        wait_for_words(host, "manage.py migrate")
    took = migrate(fleet, tree)
    migrated = time.time()
    first = max((fleet.wait_until_works(host, migrated) for host in early), default=None)
    for host in late:
        restart(fleet, host, tree)
    fleet.produce(tree)
    now = time.time()
    last = max(fleet.wait_until_works(host, migrated) for host in [*early, *late])
    during = fleet.rate(began, now)
    return Recovery("deploy", _crashed(fleet) - crashed, first, last, None, before, during, fleet.calm()), took
