"""Mutants of bounds and fairness: recycling, cursors, turns, locked rows, shared looks.

`mutation` explains what a mutant is and how mutants are tried.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

BOUNDS = of_tests(
    ("tests/worker/test_allowance.py", "tests/worker/test_lanes.py", "tests/worker/test_shared_scans.py"),
    Mutant(
        "a replacement runs as many as it would alone",
        "max(0, self.concurrency - len(self._predecessor.running()))",
        "self.concurrency",
        inside="Allowance.places",
    ),
    Mutant(
        "a dead predecessor counts for ever",
        "if self.may_retire or self._predecessor is None:",
        "if self._predecessor is None:",
        inside="Allowance.places",
    ),
    Mutant(
        "more places are opened than there are",
        "min(allowed, self.capacity) - self.opened",
        "allowed - self.opened",
        inside="InFlight.open_places",
    ),
    Mutant(
        "opened places wake nobody",
        "[None] * more)\n        self._notify_waiting_threads()",
        "[None] * more)",
        inside="InFlight.open_places",
    ),
    Mutant(
        "an exhausted lane keeps its cursor",
        "        for lane in exhausted:\n",
        "        for lane in ():\n",
        inside="LaneCursors.pass_by",
    ),
    Mutant("a full claim exhausts all lanes", "    if all_exhausted:\n", "    if True:\n", inside="exhausted_lanes"),
    Mutant(
        "a cursor goes back to the last look",
        "max(self.get(lane, passed), passed)",
        "passed",
        inside="LaneCursors.pass_by",
    ),
    Mutant(
        "a claim cut by its size has exhausted its lanes",
        "len(claimed) < min(limit, free_slots)",
        "len(claimed) < limit",
        inside="PlainKind.claim",
    ),
    Mutant(
        "the end of a pause keeps the cursors",
        "seen_at < self._seen_at or not paused_before <= set(self.paused_tasks)",
        "seen_at < self._seen_at",
        inside="Lanes._scan_plain",
    ),
    Mutant(
        "a clock set back keeps the cursors",
        "seen_at < self._seen_at or not paused_before",
        "not paused_before",
        inside="Lanes._scan_plain",
    ),
    Mutant("cursors of empty lanes are dropped", "[:-CURSORS]", "", inside="forget_oldest"),
    Mutant("cursors of empty lanes are kept for ever", "[:-CURSORS]", "[:0]", inside="forget_oldest"),
    Mutant(
        "the lane that was served last is served again", "self._served.get(lane, 0)))", "0))", inside="Lanes._sorted"
    ),
    Mutant("priority is forgotten for the turn", "(-lane.priority, turns", "(0, turns", inside="Lanes._sorted"),
    Mutant(
        "a look answers for what came after it",
        "began_at >= moment and",
        "began_at > 0 and",
        inside="SharedScans.answer",
    ),
    Mutant("a look answers for its own process", "place != self.place and", "", inside="SharedScans.answer"),
    Mutant(
        "a look that found a job answers",
        "NEVER if next_due_at is None else began_at",
        "began_at",
        inside="SharedScans.end",
    ),
    Mutant("a look under way answers for ever", "now + UNDER_WAY_SECONDS", "float('inf')", inside="SharedScans.begin"),
    Mutant(
        "what a sibling saw scheduled is slept over",
        "if_overdue), self._sibling_due_at)",
        "if_overdue))",
        inside="Lanes.next_due_at",
    ),
    Mutant("siblings answer for ever", " > SHARED_SECONDS:", " > 1e9:", inside="Lanes.are_empty_for_sibling"),
    Mutant(
        "each process claims after a notification",
        "if announced and is_first else {}",
        "if announced else {}",
        inside="Lanes.before_scan",
    ),
    Mutant(
        "a full process keeps the others waiting",
        "not any(self._rooms[: self.place])",
        "not self.place",
        inside="SharedScans.is_first",
    ),
    Mutant(
        "a storm of notifications keeps it from looking",
        "self.is_first or self._was_held_back()",
        "self.is_first",
        inside="NextScan.hold_back",
    ),
    Mutant(
        "any ring ends an idle pause",
        'time.monotonic() >= min(moment, self.lanes.next_due_at(float("inf")))',
        "True",
        inside="NextScan.hold_back",
    ),
    Mutant(
        "intervals begin when the last scan was answered",
        "(self._last_moment or time.monotonic())",
        "time.monotonic()",
        inside="NextScan.after",
    ),
    Mutant(
        "the first process waits like the others",
        "if self.is_first:",
        "if False:",
        inside="NextScan._seconds_until",
    ),
    Mutant(
        "the first process catches up on each scan",
        "return seconds or pause_seconds",
        "return seconds",
        inside="NextScan.after",
    ),
)
LOCKED = of_tests(
    ("tests/concurrency/test_locked_batches.py",),
    Mutant(
        "locked executions count in the limit",
        "    WHERE id = stale.id AND outcome IS NULL\n    FOR NO KEY UPDATE SKIP LOCKED\n",
        "    WHERE id = stale.id AND outcome IS NULL\n",
        "RESCUABLE",
    ),
    Mutant(
        "locked jobs count in the limit",
        "    WHERE id = execution.job_id AND execution_id = execution.id\n    FOR NO KEY UPDATE SKIP LOCKED\n",
        "    WHERE id = execution.job_id AND execution_id = execution.id\n",
        "RESCUABLE",
    ),
    Mutant("no fifth is taken", "SELECT count(*) / 5\n", "SELECT 0\n", "RESCUABLE"),
    Mutant("a rescue has no limit", "LIMIT greatest(\n    100,\n", "LIMIT greatest(\n    100000,\n", "RESCUABLE"),
    Mutant(
        "a rescue passes over the workers behind the first",
        "WHERE state = 'running' AND worker_id > worker.id\n",
        "WHERE state = 'running' AND worker_id < worker.id\n",
        "RESCUABLE",
    ),
    Mutant(
        "a prune ends at a batch that is locked",
        "return pruned.is_full",
        "return pruned.is_full and pruned.removed > 0",
        inside="Pruner._remove_batch",
    ),
)
PRUNING = of_tests(
    ("tests/worker/test_pruner.py",),
    Mutant(
        "each round of a prune reads kept jobs again",
        "self._marks |= self._restart_marks",
        "self._marks = dict(self._restart_marks)",
        inside="Pruner._begin_round",
    ),
    Mutant("a needed job counts as locked", "if job.need is None]", "]", inside="pruning.prune"),
    Mutant("jobs of the last instant are read again", "if last.job_id", "if False", inside="finished_page"),
    Mutant(
        "a job that was kept is never looked at again",
        "if self._began_at - self._marks_since > MARK_LIMIT_SECONDS:",
        "if False:",
        inside="Pruner._begin_round",
    ),
)
QUEUE_OPTIONS = of_tests(
    ("tests/worker/test_queue_slots.py",),
    Mutant(
        "a claim takes more jobs of a queue than it has slots",
        "min(room - len(claimed), of_queue), min(",
        "room - len(claimed), min(",
        inside="Claimer.claim",
    ),
    Mutant(
        "the end of a job frees no slot of its queue",
        "self.queue_slots.free(claimed.queue_name)",
        "pass",
        inside="InFlight.end",
    ),
    Mutant(
        "a released job keeps the slot of its queue",
        "self.queue_slots.free(job.queue_name)",
        "pass",
        inside="InFlight.take",
    ),
    Mutant(
        "jobs of the replaced process do not count",
        " - self._running_before(self._numbers[group])",
        "",
        inside="QueueSlots.room",
    ),
    Mutant(
        "lanes of different queues share one claim",
        " or shares != before or",
        " or",
        inside="Claimer._groups",
    ),
    Mutant(
        "a full queue lets the worker end as if it were empty",
        " or bool(self._full)",
        "",
        inside="Lanes.have_waiting",
    ),
    Mutant(
        "a full queue makes the fetcher poll",
        "            if self._full and lane in self._full:",
        "            if False:",
        inside="Lanes.next_due_at",
    ),
    Mutant(
        "a sibling's scan delays a freed slot",
        " or self._has_freed_queue()",
        "",
        inside="Lanes.can_continue",
    ),
    Mutant(
        "a busy queue hides the jobs of another for a second",
        "AGE_LIMIT_SECONDS if queue_slots is None else AGE_LIMIT_OF_QUEUES_SECONDS",
        "AGE_LIMIT_SECONDS",
        inside="Lanes.__init__",
    ),
    Mutant(
        "the options of queues are an order",
        "if self.queue_names and self.queue_slots is None:",
        "if self.queue_names:",
        inside="Lanes._sorted",
    ),
    Mutant(
        "an awaited slot of a queue wakes nobody",
        " or ((slots := in_flight.queue_slots) and slots.is_awaited(report.claimed.queue_name))",
        "",
        inside="Pool.finished",
    ),
)
RECYCLING = of_tests(
    ("tests/process/test_recycling.py",),
    Mutant(
        "a process retires beside its predecessor",
        "        return self.allowance.may_retire\n",
        "        return True\n",
        inside="WorkerProcess._may_retire",
    ),
    Mutant("it opens its places never", "            self._open_places()\n", "", inside="WorkerProcess._until_ordered"),
    Mutant(
        "a replacement begins with all places",
        "InFlight(options.concurrency, allowance.places, queue_slots)",
        "InFlight(options.concurrency, None, queue_slots)",
        inside="Services.__init__",
    ),
    Mutant(
        "the supervisor knows no predecessor",
        "retiring_at(self.children.values(), place))\n",
        "None)\n",
        inside="Supervisor._fork",
    ),
    Mutant("an end is not marked", "        process.state.is_gone = True\n", "", inside="Supervisor._child_ended"),
)
