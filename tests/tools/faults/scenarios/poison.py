"""Jobs in threads that crash their process, or end in ways that are hard to store (F62 to F64, F67 to F69, F81).

Threads promise a crash budget and that neighbours survive. The scenarios of timeouts and isolated processes are in
`deadly`.
"""

from __future__ import annotations

from tests.tools.faults.app_names import DEATHS, ERRORS, ODD_BACKOFFS, RESULTS
from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run

BUDGET = 3


def assert_poison(run: Run, poison: int) -> None:
    """Assert that the crash budget ended the job, without a further attempt."""
    row = run.job(poison)
    assert (row["state"], row["crashes"], row["attempt"]) == ("dead", BUDGET, BUDGET), row
    assert run.outcomes_of(poison) == ["crashed"] * BUDGET


@fault(
    "F62",
    "a job causes a segmentation fault, again and again, among 199 good jobs",
    invariant="the crash budget ends that job; all other jobs succeed",
    expected="3 crashes, then dead; 199 of 199 others succeed",
    quick=True,
)
def segfault(run: Run) -> str:
    [poison] = run.enqueue("poison.die", how="segfault")
    others = [*run.enqueue("plain", 100), *run.enqueue("atomic", 99)]
    run.worker(ready=False)
    run.wait_until_done()
    assert_poison(run, poison)
    assert run.states() == {"dead": 1, "succeeded": len(others)}
    charged = run.scalar("SELECT count(*) FROM pgqueue_job WHERE crashes > 0 AND id <> %s", [poison])
    return f"3 crashes, then dead; {len(others)} of {len(others)} others succeeded, {charged} of them charged"


@fault(
    "F63",
    "jobs call os._exit(0), os._exit(1) or os.abort(), send SIGKILL to their own process, or overflow the stack",
    invariant="a process that exits without a clean shutdown counts as crashed, with every exit code",
    expected="3 crashes each, then dead; all others succeed",
)
def other_deaths(run: Run) -> str:
    """Use a worker for each, because a process that keeps dying is replaced after growing delays."""
    poisons = {}
    for how in DEATHS:
        [poisons[how]] = run.enqueue("poison.die", how=how, queue_name=how.replace(" ", "-"))
        run.enqueue("plain", 20, queue_name=how.replace(" ", "-"))
        run.worker("--queues", how.replace(" ", "-"), ready=False)
    run.wait_until_done(60)
    overflow = poisons.pop("stack")
    for poison in poisons.values():
        assert_poison(run, poison)
    stack = run.outcomes_of(overflow)
    assert run.job(overflow)["state"] == "dead", "a stack overflow is a crash, or on later Pythons a failure"
    assert run.states() == {"dead": len(DEATHS), "succeeded": 20 * len(DEATHS)}
    overflows = f"stack overflow: {len(stack)} {stack[0]}"
    return f"{len(poisons)} of {len(poisons)} dead after 3 crashes ({overflows}); others succeeded"


@fault(
    "F64",
    (
        "a task raises SystemExit, KeyboardInterrupt, GeneratorExit or a similar exception, in a thread or on the "
        "event loop"
    ),
    invariant="the job fails as with any other exception; the process survives",
    expected="attempts + 1 each, 0 crashes",
)
def exits(run: Run) -> str:
    kinds = [kind for kind in ERRORS if kind[0].isupper()]
    tasks = ("poison.fail_with", "poison.fail_with_async")
    jobs = [run.enqueue(task, what=kind, max_attempts=2)[0] for kind in kinds for task in tasks]
    worker = run.worker()
    [child] = worker.children
    run.enqueue("plain", 50)
    run.enqueue("coroutine", 20)
    run.wait_until_done()
    for job in jobs:
        assert run.outcomes_of(job) == ["failed", "failed"], (run.job(job), run.outcomes_of(job))
    assert worker.children == [child]
    return f"{len(jobs)} of {len(jobs)} failed twice, 0 crashes; the process survived"


@fault(
    "F67",
    "endless recursion, and exceptions that cannot be stored as they are (also F68)",
    invariant="the completion can always be stored, because the error is cleaned and shortened",
    expected="each attempt fails and is stored once; 16 KiB of traceback at most",
    quick=True,
)
def odd_errors(run: Run) -> str:
    kinds = [kind for kind in ERRORS if kind[0].islower()]
    jobs = [run.enqueue("poison.fail_with", what=kind, max_attempts=2)[0] for kind in kinds]
    worker = run.worker()
    [child] = worker.children
    run.wait_until_done()
    for kind, job in zip(kinds, jobs, strict=True):
        assert run.outcomes_of(job) == ["failed", "failed"], (kind, run.outcomes_of(job))
    [(error, traceback)] = run.sql("SELECT max(length(error)), max(octet_length(traceback)) FROM pgqueue_execution")
    assert error <= 2000, error
    assert traceback <= 16 * 1024, traceback
    # Without the cleaning, the server refuses the row, and a second try stores less of the error.
    cleaned = run.sql("SELECT DISTINCT error FROM pgqueue_execution WHERE job_id = %s", [jobs[kinds.index("nul")]])
    assert cleaned == [("a\N{REPLACEMENT CHARACTER}b",)], cleaned
    assert worker.children == [child]
    return f"{len(jobs)} of {len(jobs)} failed twice; error {error} characters, traceback {traceback} bytes at most"


@fault(
    "F69",
    "results that cannot be stored",
    invariant="successful work is not repeated; the job records the reason and does not stay running",
    expected="each job is dead after one attempt",
)
def odd_results(run: Run) -> str:
    jobs = {kind: run.enqueue("poison.return_what", what=kind, max_attempts=2)[0] for kind in RESULTS}
    run.worker()
    run.wait_until_done()
    for kind, job in jobs.items():
        assert (run.job(job)["state"], run.outcomes_of(job)) == ("dead", ["failed"]), (kind, run.outcomes_of(job))
    silent = run.scalar("SELECT count(*) FROM pgqueue_execution WHERE error NOT LIKE 'the task succeeded, but%%'")
    assert not silent
    return f"{len(jobs)} of {len(jobs)} dead after one attempt, each with its reason"


@fault(
    "F81",
    "attempt 999 of 1,000, and invalid backoffs",
    invariant="the next attempt is at most a day away, or there is no next attempt; no job stays running",
    expected="at most 1 h + 30 % for the ordinary backoff; a defined rule handles each invalid backoff",
)
def odd_backoffs(run: Run) -> str:
    [often] = run.enqueue("poison.often", max_attempts=1000)
    run.meddle("UPDATE pgqueue_job SET attempt = 998 WHERE id = %s", [often], jobs=[often])
    odd = [run.enqueue("poison.odd_backoff", kind=kind)[0] for kind in ODD_BACKOFFS]
    run.worker()
    run.wait_until(lambda: run.scalar("SELECT count(*) FROM pgqueue_job WHERE state = 'running' OR attempt = 0") == 0)
    ahead = "SELECT extract(epoch FROM run_after - statement_timestamp())::float8 FROM pgqueue_job WHERE id = %s"
    delay = run.scalar(ahead, [often])
    assert 0 < delay <= 24 * 3600, delay
    furthest = max(run.scalar(ahead, [job]) for job in odd)
    ends = [(run.job(job)["state"], run.outcomes_of(job)) for job in odd]
    assert all(state in ("ready", "dead", "succeeded") for state, _ in ends), ends
    assert furthest <= 400 * 24 * 3600, f"an odd backoff delayed a job by {furthest:.0f} s"
    results = ", ".join(f"{kind}: {state}" for kind, (state, _) in zip(ODD_BACKOFFS, ends, strict=True))
    return f"{delay:.0f} s after attempt 999; invalid backoffs: {results}; latest next attempt in {furthest:.0f} s"
