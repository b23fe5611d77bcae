"""Five hosts of four processes each on one primary with a synchronous standby, under load (F131 to F135)."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.deploys import trees
from tests.tools.faults import host_faults
from tests.tools.faults.catalogue import fault
from tests.tools.faults.fleet import Fleet
from tests.tools.faults.run import Run

NEEDS = ("root", "routed namespaces")
LONG_LEASE_SECONDS = 15.0
"""Of the scenarios in which no lease may be lost. The suite's machine can be busy for seconds."""


@fault(
    "F131",
    "one of five hosts is cut off for two leases, and comes back",
    invariant="the others rescue its jobs; its late completions are refused; its processes stop or reconnect",
    expected="4 of 4 held jobs run again within lease + rescue + 1 s = 7.3 s of the cut; 0 late completions accepted",
    needs=NEEDS,
    exclusive=True,
)
def one_host_cut_off(run: Run) -> str:
    fleet = Fleet(run)
    host = run.random.choice(fleet.hosts)
    children = set(host.running.children)
    recovery = host_faults.partition(fleet, host)
    refused = host.running.said.count("does not count")
    gone = len(children - set(host.running.children))
    assert host.running.process.poll() is None, host.running.said
    assert refused, f"no completion came late, and {gone} of {len(children)} processes were replaced"
    how = f"{refused} late completions refused, {gone} of {len(children)} processes replaced"
    return f"{recovery}; {how}; {fleet.finish()}"


@fault(
    "F132",
    "two of five hosts are cut off, one half a partition after the other, each for a third of a lease",
    invariant="no lease is lost, and nothing is rescued",
    expected="0 rescued, 0 charged; no process is replaced",
    needs=NEEDS,
    exclusive=True,
)
def two_hosts_cut_off_shortly(run: Run) -> str:
    fleet = Fleet(run, LONG_LEASE_SECONDS)
    hosts = run.random.sample(fleet.hosts, 2)
    children = [host.running.children for host in hosts]
    recovery = host_faults.short_partitions(fleet, *hosts)
    assert recovery.rescued == 0, recovery
    assert [host.running.children for host in hosts] == children, "a process was replaced"
    return f"{recovery}; {fleet.finish()}"


@fault(
    "F133",
    "SIGKILL of the primary's processes, and promotion of the synchronous standby, while five hosts work",
    invariant="no acknowledged enqueue is lost; no job is charged; all hosts find the new primary by themselves",
    expected="the first completion within 3 s of the promotion, one by each host within 10 s; 0 lost, 0 charged",
    needs=NEEDS,
    exclusive=True,
)
def primary_killed(run: Run) -> str:
    return _failed_over(run, isolate=False, first_seconds=3.0, last_seconds=10.0)


@fault(
    "F133b",
    "the primary is cut off from everybody, and stays up; promotion of the synchronous standby",
    invariant="as F133; the isolated primary acknowledges nothing",
    expected="completions by each host within 40 s of the promotion: it notices the loss after 11 s, and each of its"
    " new connections waits 5 s for the isolated primary; 0 lost, 0 charged",
    needs=NEEDS,
    exclusive=True,
)
def primary_isolated(run: Run) -> str:
    return _failed_over(run, isolate=True, first_seconds=40.0, last_seconds=40.0)


def _failed_over(run: Run, *, isolate: bool, first_seconds: float, last_seconds: float) -> str:
    fleet = Fleet(run, 2 * LONG_LEASE_SECONDS)
    recovery = host_faults.lose_primary(fleet, isolate=isolate)
    assert recovery.first is not None and recovery.first <= first_seconds, recovery
    assert recovery.last is not None and recovery.last <= last_seconds, recovery
    summary = fleet.finish()
    assert not run.scalar("SELECT sum(crashes) FROM pgqueue_job"), run.outcomes()
    return f"{recovery}; {summary}"


@fault(
    "F134",
    "a rolling deploy of five hosts, in which `migrate` adds two columns and an index after the second one",
    invariant="nothing is lost or charged; new workers wait for the migration, and the old ones continue through it",
    expected="0 charged; every stop with exit code 0; the jobs of the stopped hosts run on the others",
    needs=NEEDS,
    exclusive=True,
)
def rolling_deploy(run: Run) -> str:
    fleet = Fleet(run, LONG_LEASE_SECONDS)
    tree = next_release(run)
    early = run.random.sample(fleet.hosts, 2)
    late = [host for host in fleet.hosts if host not in early]
    recovery, seconds = host_faults.deploy(fleet, tree, early=early, late=late)
    assert recovery.rescued == 0, recovery
    new = "SELECT count(*) FROM pgqueue_job WHERE note = %s"
    run.wait_until(lambda: run.scalar(new, [trees.ENQUEUED_BY_NEXT]), what="a job of the new application")
    summary = fleet.finish()
    assert not run.scalar("SELECT sum(crashes) FROM pgqueue_job"), run.outcomes()
    return f"{recovery}; migrate took {seconds:.1f} s; {summary}"


def next_release(run: Run) -> Path:
    """Make the source tree of the next release, which the machines' processes may read."""
    home = run.where / "releases"
    home.mkdir()
    run.at_end(lambda: shutil.rmtree(home))
    return trees.build_next(home)


@fault(
    "F135",
    "loss of one of five hosts: its network, then all its processes",
    invariant="the others rescue its jobs; the sessions that it leaves behind on the server block no other worker",
    expected="4 of 4 held jobs run again within lease + rescue + 1 s = 7.3 s",
    needs=NEEDS,
    exclusive=True,
)
def host_lost(run: Run) -> str:
    fleet = Fleet(run)
    host = run.random.choice(fleet.hosts)
    recovery = host_faults.lose_host(fleet, host)
    return f"{recovery}; {fleet.finish()}"
