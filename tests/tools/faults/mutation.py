"""Whether the fault suite would notice: `python -m tests.tools.faults.mutation [name …]` breaks the product on purpose.

Each mutant is put into a copy of the checkout, one at a time, and the faults that ought to notice it are run there.
Prints a line for each, and ends with status 1 if one survived. Not part of CI.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.code_names import code_names
from tests.tools.mutation.mutants import Mutant
from tests.tools.mutation.runner import FENCE, UNFENCED, applied, copied_to, mutated


class Broken(NamedTuple):
    """A mutant, and the faults that have to fail with it."""

    mutant: Mutant
    faults: str


MUTANTS: Final = (
    Broken(Mutant("a finish without its fence", FENCE, UNFENCED, "SUCCEED"), "F09"),
    Broken(
        Mutant(
            "an atomic finish that is lost commits all the same",
            "        if any(results[report.claimed.execution_id].status is not TransitionStatus.LOCKED",
            "        return\n        if any(results[report.claimed.execution_id].status is not TransitionStatus.LOCKED",
            inside="atomic.finish",
        ),
        "F09",
    ),
    Broken(
        Mutant(
            "nothing is rescued",
            "        rescued = rescues.rescue(\n",
            "        rescued = []\n        _ = (lambda *args, **options: [])(\n",
            inside="Rescuer._rescue",
        ),
        "F03",
    ),
    Broken(
        Mutant(
            "a crash is charged to all that a process held",
            "if each.execution_id in charges and each.task_name",
            "if each.task_name and charges.setdefault(each.execution_id, Charge(Ending.CRASHED, DIED))",
            inside="crash_charges.settle",
        ),
        "F02",
    ),
    Broken(
        Mutant(
            "a crash is charged to nobody",
            "process.state.suspects() if has_crashed else ()",
            "()",
            inside="_charges",
        ),
        "F62",
    ),
    Broken(
        Mutant(
            "a stopping process gives nothing back",
            "        running = [job for entry in list(self.in_flight.running.values()) for job in",
            "        running = [job for entry in [] for job in",
            inside="LastWrites.release_running",
        ),
        "F02b",
    ),
    Broken(
        Mutant(
            "what a dead process held is not settled",
            "        to_fork = [process for process in list(self.ended) if not self._settle_here(process)]\n",
            "        to_fork: list = []\n",
            inside="Settlement.tick",
        ),
        "F02",
    ),
    Broken(
        Mutant(
            "a process goes on when its supervisor is gone",
            "            if order is not None:\n",
            '            if order is not None and order != b"":\n',
            inside="WorkerProcess._until_ordered",
        ),
        "F02b",
    ),
    Broken(
        Mutant(
            "a lost claim is not given back",
            "        if stray:\n",
            "        if False:\n",
            inside="LeaseMonitor._release_unknown",
        ),
        "F01b",
    ),
    Broken(
        Mutant(
            "what a claim may still bring is released",
            "        claims_begun = self.claims.begun  #",
            "        claims_begun = 0  #",
            inside="LeaseMonitor._release_unknown",
        ),
        "F108",
    ),
    Broken(
        Mutant(
            "what runs is released before the completer is empty",
            "        self.in_flight.close()\n",
            "        self.in_flight.close()\n        self.services.last_writes.release_running()\n",
            inside="WorkerProcess._end",
        ),
        "F109",
    ),
    Broken(
        Mutant(
            "programs of isolated jobs outlive their worker",
            "        _kill_group(pid)\n    os._exit(0)\n",
            "        os.kill(pid, signal.SIGKILL)\n    os._exit(0)\n",
            inside="_main",
        ),
        "F110",
    ),
    Broken(
        Mutant(
            "an isolated process trusts its connections for ever",
            "        vars(connection)[HOOK] = watched.before_use\n",
            "",
            inside="django_connections.before_job",
        ),
        "F112",
    ),
    Broken(
        Mutant(
            "rescue does not wait for two beats",
            "if self._seconds - since >= observed_seconds",
            "if True",
            inside="LeaseWatch.lost",
        ),
        "F20b",
    ),
    Broken(
        Mutant(
            "no pause after an error",
            "        self._stopping.wait(pause_seconds)",
            "        self._stopping.wait(0.01)",
            inside="Service._pause_after",
        ),
        "F27,F38",
    ),
    Broken(
        Mutant(
            "a row that cannot be claimed is not set aside",
            "if is_to_blame and set_aside(",
            "if False and set_aside(",
            inside="Claimer._note_failure",
        ),
        "F82",
    ),
    Broken(
        Mutant(
            "connections are not cleaned after a job",
            "                self._are_open = django_connections.after_job()\n        except",
            "                pass\n        except",
            inside="ThreadSlot._clean_up",
        ),
        "F72,F74",
    ),
    Broken(
        Mutant(
            "errors are stored as they are",
            'text.replace("\\x00", "\\N{REPLACEMENT CHARACTER}")',
            "text",
            inside="storable",
        ),
        "F67",
    ),
    Broken(
        Mutant(
            "a finish waits for locked rows",
            "        FOR NO KEY UPDATE OF execution, job SKIP LOCKED\n",
            "        FOR NO KEY UPDATE OF execution, job\n",
            "SUCCEED",
        ),
        "F42",
    ),
    Broken(
        Mutant(
            "the supervisor does not beat",
            "        self._survive(lambda: self.heartbeats.send(self.children.values()))\n",
            "",
            inside="Supervisor._turn",
        ),
        "F09b",
    ),
    Broken(
        Mutant(
            "a tick is fired and not noted",
            "    WHERE what IN ('fired', 'skipped', 'duplicate')\n",
            "    WHERE what IN ('skipped', 'duplicate')\n",
            "FIRE",
        ),
        "F59",
    ),
    Broken(
        Mutant(
            "what came while nobody looked is left out",
            "    ticks = [schedule.next_run_at, *later_ticks][-MISSED_LIMIT:]\n",
            "    ticks = [schedule.next_run_at]\n",
            inside="due_ticks",
        ),
        "F59b",
    ),
    Broken(
        Mutant(
            "of what was missed nothing is fired, although all was asked for",
            '    if schedule.missed == "all":\n',
            "    if False:\n",
            inside="due_ticks",
        ),
        "F61",
    ),
    Broken(
        Mutant(
            "ticks go by UTC in every zone",
            "_cron(expression, instant.astimezone(zone))",
            "_cron(expression, instant)",
            inside="ticks_after",
        ),
        "F60",
    ),
    Broken(
        Mutant(
            "a rescued job gives up its key",
            "        unique_key = CASE WHEN job.unique_ready_only IS NULL THEN job.unique_key END,\n",
            "        unique_key = NULL,\n",
            "RESCUE",
        ),
        "F83",
    ),
    Broken(
        Mutant(
            "a rescued job takes back a key that another has",
            "        unique_key = CASE WHEN job.unique_ready_only IS NULL THEN job.unique_key END,\n",
            "",
            "RESCUE",
        ),
        "F83",
    ),
    Broken(
        Mutant(
            "nobody looks what is to be cancelled",
            "            requests = leases.cancel_requests(connection, [self.worker_id], first_id=first_id)\n",
            "            requests = []\n",
            inside="LeaseMonitor._handle_requests",
        ),
        "F84",
    ),
    Broken(
        Mutant(
            "behind a pooler statements are prepared",
            "_open(**params, prepare_threshold=None)\n",
            "_open(**params, prepare_threshold=1)\n",
            inside="_connect",
        ),
        "F50",
    ),
    Broken(
        Mutant(
            "an idle worker keeps its second connection",
            "or idle_seconds < IDLE_SECONDS:\n",
            "or idle_seconds < 1000 * IDLE_SECONDS:\n",
            inside="SharedConnections.close_idle",
        ),
        "F50",
    ),
    Broken(
        Mutant(
            "a pause of a queue holds nothing back",
            "Lane(name, priority): max(due, resumes or due) for",
            "Lane(name, priority): due for",
            inside="scan_lanes",
        ),
        "F85",
    ),
    Broken(
        Mutant(
            "the time that a claim's answer takes is time to start in",
            "start_by=sent_at + job.start_by",
            "start_by=time.monotonic() + job.start_by",
            inside="received",
        ),
        "F86",
    ),
    Broken(
        Mutant(
            "mixed calls are committed chunk by chunk",
            "        # The calls that share a statement come first",
            "        connection.connection.commit()\n        # The calls that share a statement come first",
            inside="MixedChunk.insert",
        ),
        "F115",
    ),
    Broken(
        Mutant(
            "a lost lease frees its slot before the rescue",
            "AND execution_id > given.open_after\n",
            "AND execution_id > given.open_after AND EXISTS (SELECT FROM pgqueue_execution WHERE id = execution_id "
            "AND lease_expires_at > statement_timestamp())\n",
            "CLAIM_KEYS",
        ),
        "F117",
    ),
    Broken(
        Mutant(
            "a claim locks no key",
            "pg_try_advisory_xact_lock(hashtextextended('pgqueue:' || given.limit_key, 0))",
            "true",
            "LOCK_KEYS",
        ),
        "F121",
    ),
    Broken(Mutant("a frozen process keeps keys locked", "%(idle_wait)s::text", "'0'", "LOCK_KEYS"), "F119"),
    Broken(Mutant("a dead job blocks no key", " OR state = 'dead' AND limit_order = 2", "", "CLAIM_KEYS"), "F124"),
    Broken(
        Mutant("held keys start jobs", "CASE WHEN held_us > 0 THEN 0", "CASE WHEN false THEN 0", "CLAIM_KEYS"), "F125"
    ),
    Broken(
        Mutant(
            "a batch of a bulk act is no transaction",
            "    with connection.transaction():\n        with",
            "    if True:\n        with",
            inside="execute_batch",
        ),
        "F126",
    ),
    Broken(
        Mutant(
            "a job that crashed a process joins chunks",
            "(place = 1 OR NOT follows_isolated AND size",
            "(place = 1 OR size",
            "CLAIM_CHUNK",
        ),
        "F127",
    ),
    Broken(
        Mutant(
            "several jobs probe a key",
            "PROBING if is_probing else None",
            "None",
            inside="KeyControls.policy_of",
        ),
        "F128",
    ),
    Broken(
        Mutant(
            "overrides of a limit's name are ignored",
            ", self.overrides.get(limit.name)\n",
            "\n",
            inside="KeyControls.policy_of",
        ),
        "F129",
    ),
    Broken(
        Mutant(
            "pauses of a limit's name are ignored",
            "for name in (limit_key, name_of(limit_key)))\n        return max",
            "for name in (limit_key,))\n        return max",
            inside="KeyControls.pause_of",
        ),
        "F130",
    ),
    Broken(Mutant("a host that was cut off finishes lost jobs", FENCE, UNFENCED, "SUCCEED"), "F131"),
    Broken(
        Mutant(
            "hosts send no heartbeats",
            "        self._survive(lambda: self.heartbeats.send(self.children.values()))\n",
            "",
            inside="Supervisor._turn",
        ),
        "F132",
    ),
    Broken(
        Mutant(
            "the jobs of a lost host are not rescued",
            "        rescued = rescues.rescue(\n",
            "        rescued = []\n        _ = (lambda *args, **options: [])(\n",
            inside="Rescuer._rescue",
        ),
        "F135",
    ),
    Broken(
        Mutant(
            "no sweep advances nodes", "FoundWaiting(job_ids, last_id", "FoundWaiting([], last_id", inside="find_missed"
        ),
        "F138,F138c,F139",
    ),
    Broken(
        Mutant("an attempt loads no steps", "AND compensation_id IS NULL\n", "AND false\n", "LOAD_STEPS"), "F140,F140b"
    ),
    Broken(
        Mutant(
            "an atomic step is no transaction",
            "            if step.atomic:\n",
            "            if False:\n",
            inside="AttemptSteps.step",
        ),
        "F140b",
    ),
    Broken(
        Mutant(
            "no sweep looks for missed events",
            '    DutyKind("missed events", lambda link, reactions: StepDuties(link, reactions).wake_missed, '
            "lambda: SWEEP_SECONDS),\n",
            "",
            inside="DUTIES",
        ),
        "F141,F142",
    ),
    Broken(
        Mutant(
            "a hurried job forgets when its sleep ends",
            "if left_seconds > 0:\n            self._suspend(Suspension(name, place.position, StepKind.SLEEP",
            "if place.stored is None:\n            self._suspend(Suspension(name, place.position, StepKind.SLEEP",
            inside="AttemptSteps.sleep",
        ),
        "F143",
    ),
    Broken(
        Mutant(
            "no sweep looks for compensations",
            'Sweep("compensations", _pending),',
            "",
            inside="Compensations",
        ),
        "F144",
    ),
    Broken(
        Mutant(
            "steps are undone in their order", "ORDER BY position DESC, name DESC", "ORDER BY position", "COMPENSATE"
        ),
        "F144",
    ),
    Broken(Mutant("a batch is ended without its lock", "FOR UPDATE SKIP LOCKED", "", "LOCK_BATCHES"), "F145"),
    Broken(
        Mutant(
            "a completion advances nothing",
            "            yield EndedNode(ended.job_id, Role.ENDED)\n",
            "            return\n",
            inside="Graphs.note",
        ),
        "F139b",
    ),
)
FAILED: Final = re.compile(r"^FAILED  (\S+)", re.M)
WHY: Final = (r"(FAILED: \S+: )?I\d+:", "AssertionError")
"""What a line begins with that says why a fault failed: the checker's comes first."""


def main(names: Sequence[str]) -> int:
    """Try the mutants whose names contain one of `names`, or all; return how many survived."""
    for broken in MUTANTS:  # refuse before the long run
        mutated(broken.mutant, code_names())
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="pgqm", dir="/tmp") as top:
        Path(top).chmod(0o755)
        place = copied_to(Path(top, "copy"))
        for broken in MUTANTS:
            if not names or any(name in broken.mutant.name for name in names):
                survivors += not is_noticed(place, broken)
    return survivors


def is_noticed(place: Path, broken: Broken) -> bool:
    """Try one mutant in the copy, and undo it; say whether a fault failed."""
    began = time.monotonic()
    with applied(place, broken.mutant):
        done = subprocess.run(
            [sys.executable, "-m", "tests.tools.faults", "--only", broken.faults, "--jobs", "3"],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(place)},
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
    failed = FAILED.findall(done.stdout)
    lines = done.stdout.splitlines()
    why = next((line for words in WHY for line in lines if re.match(words, line)), "")
    verdict = "noticed" if failed else "SURVIVED"
    took = time.monotonic() - began
    print(f"{verdict:9} {broken.mutant.name} ({took:.0f} s): {', '.join(failed)} {why[:150]}", flush=True)  # noqa: T201
    return bool(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of mutants; all without")
    sys.exit(1 if main(parser.parse_args().names) else 0)
