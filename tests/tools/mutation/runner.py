"""Whether the tests would notice: `python -m tests.tools.mutation [name ...]` breaks the package, one place at a time.

Copies the checkout to a temporary directory, applies one textual mutant to the copy, runs a quick choice of tests there
and says which test killed it. A mutant names the code that it changes, so it still fits after that code has moved to
another module. A mutant is refused if its name is unknown, or if its `old` text is not found there as often as stated:
the code has changed, and the mutant must follow. Not part of CI; a green suite without killed mutants proves little.

If the text of a statement stands in a clause that others share too, the mutant changes this statement alone.

Prints one line a mutant, then how many there were of each kind. Ends with status 1 if one survived or was not run.

`killers.json` names a test that has killed each mutant before. It runs first, so that a whole run takes an hour instead
of several. If it does not fail, the mutant's own choice runs. `--record` adds the killers of this run. A test that
fails without a mutant too kills none.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

from tests.code_names import CHECKOUT, CodeNames, Place, Span, code_names
from tests.tools.mutation.mutants import FEATURES, Mutant
from tests.tools.mutation.mutants_acknowledge import ACKNOWLEDGE
from tests.tools.mutation.mutants_arguments import TYPED
from tests.tools.mutation.mutants_attempts import ATTEMPTS
from tests.tools.mutation.mutants_batches import BATCHES
from tests.tools.mutation.mutants_bounds import BOUNDS, LOCKED, PRUNING, QUEUE_OPTIONS, RECYCLING
from tests.tools.mutation.mutants_breakers import BREAKERS
from tests.tools.mutation.mutants_bulk_acts import BULK_ACTS
from tests.tools.mutation.mutants_call_limits import CALL_LIMITS
from tests.tools.mutation.mutants_causes import CAUSES
from tests.tools.mutation.mutants_chunks import CHUNKS
from tests.tools.mutation.mutants_clones import CLONES
from tests.tools.mutation.mutants_console import CONSOLE
from tests.tools.mutation.mutants_contrib import CONTRIB, TRACED
from tests.tools.mutation.mutants_counts import COUNTS, PLANS_OF_ATTEMPTS
from tests.tools.mutation.mutants_databases import DATABASES
from tests.tools.mutation.mutants_ends import ENDS
from tests.tools.mutation.mutants_events import EVENTS, JOB_LINES, LOG_CONTEXT, QUEUES, RECEIVERS
from tests.tools.mutation.mutants_graphs import GRAPHS
from tests.tools.mutation.mutants_histories import HISTORIES
from tests.tools.mutation.mutants_history import HISTORY
from tests.tools.mutation.mutants_job_forms import FORMS
from tests.tools.mutation.mutants_languages import LANGUAGES
from tests.tools.mutation.mutants_latency import LATENCY
from tests.tools.mutation.mutants_leases import CLAIM_TIME, LEASES
from tests.tools.mutation.mutants_limit_pages import LIMIT_PAGES
from tests.tools.mutation.mutants_limit_stats import LIMIT_STATS
from tests.tools.mutation.mutants_limits import CLAIMS_OF_LIMITS
from tests.tools.mutation.mutants_liveness import LIVENESS
from tests.tools.mutation.mutants_many_lanes import FROM_CURSORS, MANY_LANES
from tests.tools.mutation.mutants_messages import MESSAGES
from tests.tools.mutation.mutants_operators import OPERATORS
from tests.tools.mutation.mutants_plans import PLANS
from tests.tools.mutation.mutants_privacy import PRIVACY
from tests.tools.mutation.mutants_registration import REGISTRATION
from tests.tools.mutation.mutants_remote import REMOTE_WORKERS
from tests.tools.mutation.mutants_rows import BAD_ROWS
from tests.tools.mutation.mutants_sagas import SAGAS
from tests.tools.mutation.mutants_search import SEARCH
from tests.tools.mutation.mutants_seen import SEEN, TIMES
from tests.tools.mutation.mutants_stats import STATS
from tests.tools.mutation.mutants_steps import STEPS
from tests.tools.mutation.mutants_timeline import TIMELINE
from tests.tools.mutation.mutants_trust_attempts import TRUST_ATTEMPTS
from tests.tools.mutation.mutants_trust_calls import TRUST_CALLS
from tests.tools.mutation.mutants_trust_connections import TRUST_CONNECTIONS
from tests.tools.mutation.mutants_trust_flow import TRUST_FLOW
from tests.tools.mutation.mutants_trust_outages import TRUST_OUTAGES
from tests.tools.mutation.mutants_trust_removal import TRUST_REMOVAL
from tests.tools.mutation.mutants_trust_rows import TRUST_ROWS
from tests.tools.mutation.mutants_unread import UNREAD
from tests.tools.mutation.rendered import rendered

COPIED = (
    "django_pgqueue",
    "example_project",
    "tests",
    "docs",
    "pyproject.toml",
    "README.md",
    "CONTRIBUTING.md",
    ".github",
)
BACKOFFS = ("tests/test_retry.py",)
QUICK = (
    *("tests/concurrency/test_races.py", "tests/concurrency/test_claims.py", "tests/test_states.py"),
    *("tests/test_sql.py", "tests/concurrency/test_cursor.py", "tests/concurrency/test_crowd.py"),
    *("tests/test_stateful.py", "tests/test_properties.py", "tests/test_serialization.py", "tests/tools/model"),
)
LIMIT_SECONDS = 600.0
KILLERS = Path(__file__).with_name("killers.json")
DIRTY = "dirty"
"""The file beside a copy whose test database is to be made anew."""
KILLED = re.compile(r"^(?:FAILED|ERROR) (\S+?::.+?)(?: - |$)", re.M)
NAMED = f"        WHERE execution.id = given.id\n{CLAIM_TIME}"
FENCE = f"{NAMED}          AND execution.outcome IS NULL\n"
UNFENCED = NAMED
BY_STATE = f"{NAMED} AND job.state = 'running'\n"
BY_ATTEMPT = f"{NAMED} AND job.state = 'running' AND job.attempt = execution.attempt\n"
BY_WORKER = (
    f"{NAMED} AND job.state = 'running' AND execution.worker_id = (SELECT other.worker_id "
    "FROM pgqueue_execution AS other WHERE other.job_id = job.id AND other.outcome IS NULL)\n"
)
LATERAL_LOCK = "        FOR NO KEY UPDATE OF execution, job SKIP LOCKED\n"


MUTANTS = [
    Mutant("fence removed in SUCCEED", FENCE, UNFENCED, "SUCCEED"),
    Mutant("fence removed in SUCCEED_AND_DISCARD", FENCE, UNFENCED, "SUCCEED_AND_DISCARD"),
    Mutant("fence removed in FAIL", FENCE, UNFENCED, "FAIL"),
    Mutant("fence removed in RELEASE", FENCE, UNFENCED, "RELEASE"),
    Mutant("fence removed in END_CANCELLED", FENCE, UNFENCED, "END_CANCELLED"),
    Mutant("fence by state only in SUCCEED", FENCE, BY_STATE, "SUCCEED"),
    Mutant("fence by state only in FAIL", FENCE, BY_STATE, "FAIL"),
    Mutant("SKIP LOCKED removed in CLAIM", "FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE", "CLAIM"),
    Mutant("no lock in CLAIM", "        FOR NO KEY UPDATE SKIP LOCKED\n", "", "CLAIM"),
    Mutant("MATERIALIZED removed in CLAIM", "AS MATERIALIZED (", "AS NOT MATERIALIZED (", "CLAIM"),
    Mutant("MATERIALIZED removed in CLAIM_AHEAD", "AS MATERIALIZED (", "AS NOT MATERIALIZED (", "CLAIM_AHEAD", times=3),
    Mutant("only the inner LIMIT in CLAIM", "    ) AS job\n    LIMIT %(limit)s\n", "    ) AS job\n", "CLAIM"),
    Mutant("only the outer LIMIT in CLAIM", "        LIMIT %(limit)s\n        FOR NO", "        FOR NO", "CLAIM"),
    Mutant(
        "columns from a second look at the table in CLAIM",
        "RETURNING\n    job.id, job.execution_id, job.task_name,",
        "RETURNING\n    job.id, job.execution_id, (SELECT task_name FROM pgqueue_job WHERE id = due.id),",
        "CLAIM",
    ),
    Mutant("order inside a lane dropped", "        ORDER BY run_after, id\n", "", "CLAIM"),
    Mutant(
        "due time dropped in CLAIM",
        "          AND run_after <= statement_timestamp()",
        "          AND true OR false AND run_after <= statement_timestamp()",
        "CLAIM",
    ),
    Mutant(
        "cursor comparison dropped in CLAIM",
        "          AND (run_after, id) > (lane.after_at, lane.after_id)\n",
        "",
        "CLAIM",
    ),
    Mutant("cut before a last attempt dropped", "place > %(free_slots)s AND is_last", "false", "CLAIM_AHEAD"),
    Mutant("large arguments claimed ahead without a bound", "size <= %(ahead_bytes)s AND ", "", "CLAIM_AHEAD"),
    Mutant("limited jobs seen by plain claims", "          AND limit_key IS NULL\n", "", "CLAIM"),
    Mutant(
        "unstarted executions marked as started",
        "CASE WHEN place <= %(free_slots)s\n",
        "CASE WHEN true\n",
        "CLAIM_AHEAD",
    ),
    Mutant(
        "lease condition removed in RESCUE",
        "          ) < statement_timestamp() + %(time_shift)s::interval\n",
        "          ) IS NOT NULL\n",
        "RESCUE",
    ),
    Mutant("fence removed in RESCUE", "          AND execution.outcome IS NULL\n", "", "RESCUE"),
    Mutant("rescue charges the unstarted", "mine.started::int", "1", "RESCUE"),
    Mutant("rescue charges nobody", "mine.started::int", "0", "RESCUE"),
    Mutant(
        "rescue ignores a request to cancel",
        "job.cancel_requested_at IS NOT NULL AS cancelled",
        "false AS cancelled",
        "RESCUE",
    ),
    Mutant(
        "rescue does not close the execution",
        "    WHERE execution.id = mine.id\n",
        "    WHERE execution.id = -mine.id\n",
        "RESCUE",
    ),
    Mutant(
        "rescue waits for locked rows",
        "FOR NO KEY UPDATE OF execution, job SKIP LOCKED",
        "FOR NO KEY UPDATE OF execution, job",
        "RESCUE",
    ),
    Mutant(
        "attempt not given back in RELEASE",
        "attempt = greatest(job.attempt - 1, 0)",
        "attempt = job.attempt",
        "RELEASE",
    ),
    Mutant(
        "request to cancel ignored in RELEASE",
        "job.cancel_requested_at IS NOT NULL AS cancelled",
        "false AS cancelled",
        "RELEASE",
    ),
    Mutant(
        "request to cancel ignored in FAIL",
        "job.cancel_requested_at IS NOT NULL AS cancelled",
        "false AS cancelled",
        "FAIL",
    ),
    Mutant("crash not charged in FAIL", "(mine.outcome = 'crashed')::int", "0", "FAIL"),
    Mutant("SUCCEED waits for locked rows", LATERAL_LOCK, LATERAL_LOCK.replace(" SKIP LOCKED", ""), "SUCCEED"),
    Mutant(
        "SUCCEED locks the execution only", LATERAL_LOCK, LATERAL_LOCK.replace("execution, job", "execution"), "SUCCEED"
    ),
    Mutant("FAIL locks the execution only", LATERAL_LOCK, LATERAL_LOCK.replace("execution, job", "execution"), "FAIL"),
    Mutant("SUCCEED does not lock", LATERAL_LOCK, "", "SUCCEED"),
    Mutant("EXTEND waits for locked rows", "FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE", "EXTEND"),
    Mutant(
        "EXTEND says everything was extended",
        "(SELECT id FROM extended)",
        "(SELECT id FROM pgqueue_worker)",
        "EXTEND",
    ),
    Mutant(
        "EXTEND beats for others", "    WHERE id = ANY (ARRAY (SELECT id FROM mine))\n", "    WHERE true\n", "EXTEND"
    ),
    Mutant(
        "cancel judged by state in the predicate",
        "WHERE id = seen.id\n",
        "WHERE id = seen.id AND state = 'ready'\n",
        "CANCEL",
    ),
    Mutant("cancel waits for locked rows", "FOR NO KEY UPDATE SKIP LOCKED", "FOR NO KEY UPDATE", "CANCEL"),
    Mutant(
        "cancel of a running job ends it",
        "asked.state IN ('ready', 'waiting') THEN 'cancelled'",
        "true THEN 'cancelled'",
        "CANCEL",
    ),
    Mutant("retry keeps the attempts", "attempt = 0, crashes = 0,", "crashes = 0,", "RETRY"),
    Mutant("retry keeps a request to cancel", "cancel_requested_at = NULL, ", "", "RETRY"),
    Mutant(
        "prune ignores the state",
        "    WHERE state = %(state)s\n      AND finished_at",
        "    WHERE %(state)s <> '' AND finished_at",
        "FINISHED_JOBS",
    ),
    Mutant(
        "prune ignores the retention",
        "secs => %(older_than_seconds)s::float8",
        "secs => 0 * %(older_than_seconds)s::float8",
        "FINISHED_JOBS",
    ),
    Mutant(
        "prune leaves the executions",
        "DELETE FROM pgqueue_execution WHERE job_id",
        "DELETE FROM pgqueue_execution WHERE false AND job_id",
        "REMOVE",
    ),
    Mutant(
        "prune waits for locked executions",
        "ORDER BY id FOR UPDATE SKIP LOCKED",
        "ORDER BY id FOR UPDATE",
        "LOCK_FINISHED",
    ),
    Mutant(
        "prune takes jobs with locked executions", "AND id NOT IN (SELECT id FROM locked)", "AND false", "LOCK_FINISHED"
    ),
    Mutant("time of the transaction in SUCCEED", "statement_timestamp()", "now()", "SUCCEED", times=2),
    Mutant("fence of the job removed in SUCCEED", "          AND job.execution_id = execution.id\n", "", "SUCCEED"),
    Mutant("fence of the job removed in FAIL", "          AND job.execution_id = execution.id\n", "", "FAIL"),
    Mutant("fence of the job removed in RELEASE", "          AND job.execution_id = execution.id\n", "", "RELEASE"),
    Mutant("time of the transaction in ENQUEUE_MANY", "statement_timestamp()", "now()", "ENQUEUE_MANY", times=3),
    Mutant(
        "orphans of living jobs removed",
        "AND (SELECT true FROM pgqueue_job AS job WHERE job.id = execution.job_id) IS NULL",
        "",
        "REMOVE_ORPHANS",
    ),
    Mutant(
        "a lost reply is told as a loss",
        "statuses[execution_id] = TransitionStatus.ALREADY_DONE",
        "statuses[execution_id] = TransitionStatus.LOST",
        inside="_results_of_not_open",
    ),
    Mutant(
        "a locked execution is told as lost",
        "statuses[execution_id] = TransitionStatus.LOCKED",
        "statuses[execution_id] = TransitionStatus.LOST",
        inside="_results_of_not_open",
    ),
    Mutant(
        "finishes are not sorted",
        "zip(*sorted(finished), strict=True)",
        "zip(*finished, strict=True)",
        inside="succeed",
    ),
    Mutant(
        "no second try after a deadlock",
        "for _ in range(TRIES - 1):",
        "for _ in range(0):",
        inside="execute_with_retry",
    ),
    Mutant(
        "one job's act does not insist",
        "if waiting and not wait.sleep():",
        "if waiting:",
        inside="_repeat_while_locked",
    ),
    Mutant(
        "isolation left to the database",
        'cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")',
        "pass",
        inside="read_committed",
    ),
    Mutant("fence by attempt only in RELEASE", FENCE, BY_ATTEMPT, "RELEASE"),
    Mutant("fence by attempt only in SUCCEED", FENCE, BY_ATTEMPT, "SUCCEED"),
    Mutant("fence by worker only in SUCCEED", FENCE, BY_WORKER, "SUCCEED"),
    Mutant("fence by worker only in FAIL", FENCE, BY_WORKER, "FAIL"),
    Mutant("set_aside takes what runs", " AND state = 'ready'\n", "\n", "SET_ASIDE"),
    Mutant("retry takes what is not finished", "WHERE state IN ('succeeded', 'dead', 'cancelled')\n", "\n", "RETRY"),
    Mutant("retry does not lock", "    FOR NO KEY UPDATE SKIP LOCKED\n", "", "RETRY"),
    Mutant("retry keeps the result", "result = NULL,", "result = result,", "RETRY"),
    Mutant("run_now takes what is not ready", "job.state IN ('ready', 'waiting')\n            AND ", "", "RUN_NOW"),
    Mutant("an unknown task is known again by a release", "= 'released' AND NOT", "= '' AND NOT", "RELEASE"),
    Mutant("a failure leaves the task unknown", "        unknown_since = NULL,\n", "", "FAIL"),
    Mutant(
        "a discarded job's executions stay",
        "ANY (ARRAY (SELECT job_id FROM mine))\n)\nSELECT",
        "0\n)\nSELECT",
        "SUCCEED_AND_DISCARD",
    ),
    Mutant(
        "prune of one task takes all", "task_name = %(task_name)s\n", "%(task_name)s <> ''\n", "FINISHED_JOBS_OF_TASK"
    ),
    Mutant(
        "prune takes tasks that have their own",
        "task_name <> ALL (%(other_task_names)s::varchar[])",
        "%(other_task_names)s::varchar[] IS NOT NULL",
        "FINISHED_JOBS",
    ),
    Mutant("prune begins with the newest", "ORDER BY finished_at\n", "ORDER BY finished_at DESC\n", "FINISHED_JOBS"),
    Mutant("prune knows no limit", "LIMIT %(limit)s::bigint\n", "LIMIT 1000 + %(limit)s::bigint\n", "FINISHED_JOBS"),
    Mutant(
        "one crash more than the budget", "job.crashes + 1 >=", "job.crashes >=", inside="retry_policy._is_last_crash"
    ),
    Mutant("the unstarted have a crash budget", "if has_started and", "if", inside="delay_after_crash"),
    Mutant(
        "one attempt more than the maximum",
        "job.attempt >= job.max_attempts",
        "job.attempt > job.max_attempts",
        inside="delay_after_failure",
    ),
    Mutant(
        "a number has no jitter",
        "exponential(value, factor=1, cap=value)",
        "fixed(value)",
        inside="as_backoff",
        tests=BACKOFFS,
    ),
    Mutant(
        "any backoff gets a result",
        'is_second_kind = names[1:2] == ["task_result"]',
        "is_second_kind = True",
        inside="takes_task_result",
    ),
    Mutant(
        "full jitter starts at the delay",
        '(0.0, 1.0) if jitter == "full"',
        '(1.0, 1.0) if jitter == "full"',
        inside="exponential",
        tests=BACKOFFS,
    ),
    Mutant("a backoff may overflow", "except OverflowError:", "except KeyError:", inside="exponential.backoff"),
    Mutant("a factor may be anything", 'not 1 <= factor < float("inf")', "factor < 1", inside="exponential"),
    Mutant(
        "a backoff has no cap", "min(cap_seconds, base_seconds", "min(1e300, base_seconds", inside="exponential.backoff"
    ),
    Mutant(
        "a delay of centuries is not cut",
        "min(seconds(delay), MAX_DELAY_SECONDS)",
        "seconds(delay)",
        inside="delay_after",
    ),
    Mutant("errors keep NUL", 'text.replace("\\x00", "\\N{REPLACEMENT CHARACTER}")', "text", inside="storable"),
    Mutant("errors are cut too late", "(limit - MIN_CUT_BYTES) // 2", "limit // 2", inside="storable"),
    Mutant("errors are not cut at small limits", "data = data[:limit]", "data = data", inside="storable"),
    Mutant("arguments keep NUL", 'if "\\x00" in text:', "if False:", inside="serialization._text"),
    Mutant("arguments keep NaN", "if not math.isfinite(number):", "if False:", inside="serialization._number"),
    Mutant(
        "arguments keep huge integers", "if number.bit_length() > MAX_INTEGER_BITS:", "if False:", inside="_integer"
    ),
    Mutant("keys that meet are one", "if name in normalised:", "if False:", inside="_object"),
    Mutant("any depth", "if depth > MAX_DEPTH:", "if False:", inside="serialization.normalise"),
    *FEATURES,
    *LATENCY,
    *LEASES,
    *LIVENESS,
    *ENDS,
    *EVENTS,
    *STEPS,
    *TRUST_ATTEMPTS,
    *TRUST_CALLS,
    *TRUST_CONNECTIONS,
    *TRUST_FLOW,
    *TRUST_OUTAGES,
    *TRUST_REMOVAL,
    *TRUST_ROWS,
    *UNREAD,
    *SAGAS,
    *JOB_LINES,
    *LOG_CONTEXT,
    *RECEIVERS,
    *QUEUES,
    *BAD_ROWS,
    *CLONES,
    *COUNTS,
    *PLANS_OF_ATTEMPTS,
    *DATABASES,
    *CONSOLE,
    *CONTRIB,
    *TRACED,
    *REGISTRATION,
    *REMOTE_WORKERS,
    *SEARCH,
    *CAUSES,
    *BATCHES,
    *GRAPHS,
    *HISTORIES,
    *SEEN,
    *ACKNOWLEDGE,
    *MESSAGES,
    *TIMES,
    *CALL_LIMITS,
    *BREAKERS,
    *CLAIMS_OF_LIMITS,
    *CHUNKS,
    *FROM_CURSORS,
    *MANY_LANES,
    *LIMIT_STATS,
    *STATS,
    *TIMELINE,
    *LANGUAGES,
    *ATTEMPTS,
    *BOUNDS,
    *PRUNING,
    *QUEUE_OPTIONS,
    *LOCKED,
    *RECYCLING,
    *OPERATORS,
    *BULK_ACTS,
    *PLANS,
    *PRIVACY,
    *TYPED,
    *HISTORY,
    *FORMS,
    *LIMIT_PAGES,
]
EQUIVALENT = {
    "each restored dependent is compared with all others": "today, the planner hashes either list",
    "finishes are not sorted": "where every lock skips, no order of locking can deadlock",
    "lost executions are looked up in all open ones": "the settings of the engine's sessions leave only the index",
    "only the outer LIMIT in CLAIM": "rows are locked one by one, so the outer LIMIT stops the lateral queries",
    "programs of a dead isolated process go on": "the worker process kills them too; the fork server is only sooner",
    "rows are not repaired": "the repair under the lock does all of it; the one before only makes that one short",
    "MATERIALIZED removed in CLAIM": "PostgreSQL inlines no CTE that locks rows or draws from a sequence",
    "MATERIALIZED removed in CLAIM_AHEAD": "as in CLAIM, and the third CTE numbers the same rows if it is inlined",
}


def mutated(mutant: Mutant, names: CodeNames) -> dict[str, str]:
    """Return the new text of each file that the mutant changes; raise `LookupError` if it does not fit the code."""
    try:
        return with_changed_code(mutant, names)
    except LookupError:
        if texts := with_changed_statement(mutant, names):
            return texts
        raise


def with_changed_code(mutant: Mutant, names: CodeNames) -> dict[str, str]:
    """Change the code that has the names of the mutant."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for place in places_of(mutant, names):
        spans[place.path] += place.spans
    found, texts = 0, {path: names.texts[path] for path in spans}
    for path, text in texts.items():
        for start, end in sorted(spans[path], reverse=True):
            found += text[start:end].count(mutant.old)
            texts[path] = texts[path][:start] + text[start:end].replace(mutant.old, mutant.new) + texts[path][end:]
    if found != mutant.times:
        raise LookupError(f"{mutant.name}: found {found} times instead of {mutant.times}: {mutant.old!r}")
    return texts


def with_changed_statement(mutant: Mutant, names: CodeNames) -> dict[str, str]:
    """Change the text of a statement as it runs, if it is joined from clauses; return no file if it does not fit.

    Other statements keep the clauses, because the changed text is assigned again below the statement.
    """
    texts = {}
    for place in names.places(mutant.statement):
        statement = rendered(mutant.statement, place.path, names.texts)
        if statement.count(mutant.old) == mutant.times:
            text, end = names.texts[place.path], place.spans[-1].end
            name = mutant.statement.rpartition(".")[2]
            changed = f"{name}: Final = {statement.replace(mutant.old, mutant.new)!r}\n"
            texts[place.path] = text[:end] + changed + text[end:]
    return texts if len(texts) == 1 else {}


def places_of(mutant: Mutant, names: CodeNames) -> list[Place]:
    """Return the code that the mutant names."""
    if mutant.file:
        return [names.whole_file(mutant.file)]
    return [names.place(name, mutant.old) for name in (mutant.statement or mutant.inside).split(", ")]


def run_tests(place: Path, tests: Sequence[str]) -> tuple[str, str]:
    """Run tests in the copy up to the first that fails; return what became of the mutant, and which test failed."""
    try:
        code, output = pytest(place, "-x", *tests)
    except subprocess.TimeoutExpired:
        return "killed", f"the tests have not ended after {LIMIT_SECONDS} s"
    found = KILLED.search(output)
    if not found and "Timeout" in output:  # pytest-timeout ends the whole run, and leaves what the test has made
        (place.parent / DIRTY).touch()
        return "killed", "a test hung"
    return ("SURVIVED" if code == 0 else "killed" if found else "NOT RUN"), found[1] if found else output[-300:]


def without_useless(killers: Mapping[str, str], place: Path, jobs: int) -> dict[str, str]:
    """Leave out killers that do not exist any more, or that fail without any mutant: those would seem to kill all."""
    _, collected = pytest(place, "--collect-only", "tests")
    tests = sorted(set(killers.values()) & set(collected.splitlines()))
    code, output = pytest(place, "-n", str(jobs), "--dist", "loadfile", *tests, limit_seconds=6 * LIMIT_SECONDS)
    failing = KILLED.findall(output)
    if code and not failing:
        raise RuntimeError(output[-2000:])
    useful = set(tests) - set(failing)
    print(f"left out: {sorted(set(killers.values()) - useful)}", flush=True)  # noqa: T201
    return {name: test for name, test in killers.items() if test in useful}


def pytest(place: Path, *arguments: str, limit_seconds: float = LIMIT_SECONDS) -> tuple[int, str]:
    """Run pytest in the copy; return its exit code and what it printed."""
    dirty = place.parent / DIRTY
    database = "--create-db" if dirty.exists() else "--reuse-db"
    dirty.unlink(missing_ok=True)
    options = ("-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", database, "--hypothesis-profile=mutation")
    # A file, because a pipe would be waited for until the last of its processes ends.
    with (place.parent / "output").open("w+") as output:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *arguments],
            cwd=place,
            env={**os.environ, "PYTHONPATH": str(place), "TMPDIR": str(place.parent)},
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=limit_seconds,
        )
        output.seek(0)
        return done.returncode, output.read()


def main(names: Sequence[str], tests: Sequence[str], jobs: int, *, record: bool = False) -> int:
    """Try the mutants named, or all, with these tests or else each with its own; return how many were not killed."""
    for mutant in MUTANTS:  # refuse before the long run
        mutated(mutant, code_names())
    mutants = chosen(names)
    places: SimpleQueue[Path] = SimpleQueue()
    with ExitStack() as stack:
        for _ in range(jobs):
            places.put(copied_to(new_place(stack)))
        killers = {} if tests else known_killers(mutants)
        if killers:
            killers = without_useless(killers, first := places.get(), jobs)
            places.put(first)

        def try_one(mutant: Mutant) -> tuple[str, str]:
            place = places.get()
            try:
                return tried(place, mutant, tests or mutant.tests or QUICK, killers.get(mutant.name))
            finally:
                places.put(place)

        with ThreadPoolExecutor(jobs) as pool:
            verdicts = Counter[str]()
            for mutant, (verdict, word) in zip(mutants, pool.map(try_one, mutants), strict=True):
                verdicts[verdict] += 1
                if record and verdict == "killed" and "::" in word:
                    record_killer(mutant, word)
    print(", ".join(f"{count} {word}" for word, count in sorted(verdicts.items())))  # noqa: T201
    return sum(verdicts[word] for word in ("SURVIVED", "NOT RUN"))


def known_killers(mutants: Iterable[Mutant]) -> dict[str, str]:
    """Return the test that has killed each mutant, by the mutant's name."""
    names = {mutant.name for mutant in mutants}
    with suppress(FileNotFoundError):
        return {name: test for name, test in json.loads(KILLERS.read_text()).items() if name in names}
    return {}


def record_killer(mutant: Mutant, test: str) -> None:
    """Store which test has killed a mutant, and forget mutants that do not exist any more."""
    killers = known_killers(MUTANTS) | {mutant.name: test}
    KILLERS.write_text(json.dumps(killers, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def new_place(stack: ExitStack) -> Path:
    """Return the path of a copy to be, in a temporary directory of its own."""
    top = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pgq-", dir="/tmp")))
    top.chmod(0o711)
    return top / "copy"


def copied_to(place: Path) -> Path:
    """Copy what a run needs of the checkout to a new directory; return that."""
    place.mkdir()
    for name in COPIED:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, place / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, place / name)
    return place


def chosen(names: Sequence[str]) -> list[Mutant]:
    """Return the mutants whose name contains one of `names`, or whose number is in its range `from:to`.

    Without names, equivalent mutants are left out, because each takes as long as a hundred others.
    """
    found = [mutant for mutant in MUTANTS if any(name in mutant.name for name in names)]
    if not names:
        found = [mutant for mutant in MUTANTS if mutant.name not in EQUIVALENT]
    for first, last in (name.split(":") for name in names if re.fullmatch(r"\d*:\d*", name)):
        found += MUTANTS[int(first or 0) : int(last or len(MUTANTS))]
    return found


def run_mutated(place: Path, mutant: Mutant, tests: Sequence[str]) -> tuple[str, str]:
    """Run tests in the copy with a mutant in it, as `run_tests()`."""
    with applied(place, mutant):
        return run_tests(place, tests)


@contextmanager
def applied(place: Path, mutant: Mutant) -> Iterator[None]:
    """Put a mutant into the copy, and take it out at the end."""
    texts = mutated(mutant, code_names())
    originals = {path: (place / path).read_text() for path in texts}
    try:
        for path, text in texts.items():
            (place / path).write_text(text)
        yield
    finally:
        for path, text in originals.items():
            (place / path).write_text(text)


def tried(place: Path, mutant: Mutant, tests: Sequence[str], killer: str | None = None) -> tuple[str, str]:
    """Try one mutant in the copy, and undo it; return the verdict, and which test killed it or why it lives.

    The other tests run only if the known killer does not fail.
    """
    began = time.monotonic()
    verdict, word = run_mutated(place, mutant, [killer]) if killer else ("", "")
    left_out: list[str] = []
    while verdict != "killed":
        verdict, word = run_mutated(place, mutant, [*tests, *left_out])
        if verdict != "killed" or "::" not in word or run_tests(place, [word])[0] != "killed":
            break
        left_out.append(f"--deselect={word}")  # it fails without the mutant too
        verdict = ""
    if verdict == "SURVIVED" and mutant.name in EQUIVALENT:
        verdict, word = "equivalent", EQUIVALENT[mutant.name]
    print(f"{verdict:10} {mutant.name} ({time.monotonic() - began:.0f} s): {word}", flush=True)  # noqa: T201
    return verdict, word


def run(arguments: Sequence[str]) -> int:
    """Read the arguments of the command line, and try what they name; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.mutation", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of mutants, or from:to by number; all without")
    parser.add_argument("--tests", nargs="+", default=(), help="instead of each mutant's own choice")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time, each in a copy of its own")
    parser.add_argument("--record", action="store_true", help="store which test killed each mutant, to run it first")
    options = parser.parse_args(arguments)
    return 1 if main(options.names, options.tests, options.jobs, record=options.record) else 0
