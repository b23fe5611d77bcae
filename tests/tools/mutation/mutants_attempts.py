"""Mutants of what the pages and the commands say about attempts: losses, code that goes on, and retries.

`mutation` explains what a mutant is and how mutants are tried. Each names the tests that must fail.
"""

from tests.tools.mutation.mutants import Mutant, of_tests

ATTEMPTS = [
    *of_tests(
        ("tests/test_attempt_ends.py",),
        Mutant(
            "an isolated process takes its run time with it",
            " and not error.startswith(ISOLATED_DIED)",
            "",
            inside="is_lost",
        ),
        Mutant(
            "the time of the discovery is a start",
            "row.started_at if found_at is None or row.started_at != found_at else None",
            "row.started_at",
            inside="loss_of",
        ),
        Mutant(
            "a later heartbeat has seen a lost attempt",
            " or (found_at is not None and heartbeat_at > found_at)",
            "",
            inside="loss_of",
        ),
        Mutant(
            "an earlier heartbeat has seen an attempt",
            "max(heartbeat_at, started_at or row.claimed_at)",
            "heartbeat_at",
            inside="loss_of",
        ),
        Mutant(
            "code outlives its worker",
            "heartbeat_at if stopped_at is None else None",
            "heartbeat_at",
            inside="end_of",
        ),
        Mutant("code outlives a lost host", "        alive_at = None\n", "        pass\n", inside="end_of"),
        Mutant("code runs on before a sign of life", " and alive_at > row.finished_at", "", inside="may_still_run"),
        Mutant("released attempts show a retry", " and before.outcome not in UNCOUNTED", "", inside="is_numbered_anew"),
        Mutant("a retry counts for earlier attempts", " and each.at <= row.claimed_at", "", inside="retries_before"),
        Mutant(
            "the audit does not have a retry that was not read",
            "EARLIER if latest is None and len(retries) == READ else UNRECORDED",
            "UNRECORDED",
            inside="retries_before",
        ),
        Mutant(
            "a retry by code is not noticed",
            "elif before is not None and is_numbered_anew(row, before):",
            "elif False:",
            inside="retries_before",
        ),
    ),
    *of_tests(
        ("tests/admin/test_attempts.py",),
        Mutant(
            "an open attempt hides earlier errors",
            "islice(since, None if is_open else 1)",
            "islice(since, 1)",
            inside="story.failure",
        ),
        Mutant(
            "an error from before a success is shown",
            'each["execution"].outcome != Outcome.SUCCEEDED',
            "True",
            inside="story.failure",
        ),
        Mutant(
            "an earlier error looks like that of the open attempt",
            "if is_open else None\n    return {",
            "if False else None\n    return {",
            inside="story.failure",
        ),
        Mutant(
            "a lost attempt ends as others",
            "if loss is not None and loss.found_at",
            "if False and loss.found_at",
            inside="story._events_of",
        ),
        Mutant(
            "a running job may still run",
            "if job.state == State.RUNNING or not attempts or",
            "if not attempts or",
            inside="attempts.still_runs",
        ),
        Mutant(
            "a list gives lost attempts a run time", 'return gettext("not known")', "pass", inside="JobColumns.run_time"
        ),
        Mutant(
            "the timeline has no retries", "for retry in retries[-SHOWN:]:", "for retry in ():", inside="story._events"
        ),
        Mutant(
            "every attempt names its retry in the timeline",
            "retry is not None and is_first",
            "retry is not None",
            inside="attempts.read_attempts",
        ),
        Mutant(
            "the timeline has the first retry by code only",
            " or is_numbered_anew(each, before)",
            "",
            inside="attempts._are_first",
        ),
        Mutant(
            "other acts look like retries", ", entry__action=RETRY.name).order_by", ").order_by", inside="retries_of"
        ),
        Mutant(
            "a stack does not name its attempt", "if execution is not None:", "if False:", inside="live_stack._answer"
        ),
    ),
    *of_tests(
        ("tests/admin/test_step_timeline.py",),
        Mutant("if all attempts are lost, others ran", "if lost == len(spans):", "if lost == 1:", inside="_attempts"),
    ),
    *of_tests(
        ("tests/management/test_shown_attempts.py",),
        Mutant(
            "a shell names no earlier attempt",
            '"" if failure is latest else f"',
            '"" if True else f"',
            inside="_write_failure",
        ),
        Mutant(
            "a shell shows an error from before a success",
            "each.row.outcome != Outcome.SUCCEEDED",
            "True",
            inside="show_action._write",
        ),
        Mutant(
            "a shell gives lost attempts a run time",
            "if attempt.loss is not None:",
            "if False:",
            inside="show_action._ran",
        ),
        Mutant(
            "a shell does not say that code may run",
            "attempts[0].still_runs and",
            "False and",
            inside="show_action._write",
        ),
        Mutant("an attempt that runs may still run", " and not is_running", "", inside="show_action._attempt"),
        Mutant("one sentence is in UTC", "None if out.is_json else date_of", "None", inside="show_action.show"),
        Mutant("a shell shows one retry too many", "retries[-SHOWN:]", "retries", inside="show_action.show"),
    ),
    *of_tests(
        ("tests/management/test_jobs_list.py",),
        Mutant("a lost job runs on in the list", 'row.word == "lost" and', "False and", inside="jobs_command.when"),
    ),
    *of_tests(
        ("tests/admin/test_step_timeline.py",),
        Mutant(
            "the time of a lost attempt adds up",
            "timedelta() if loss else span.end - span.start",
            "span.end - span.start",
            inside="steps._attempts",
        ),
    ),
    *of_tests(
        ("tests/doctor/test_worker_checks.py",),
        Mutant(
            "a lost attempt comes close to the timeout",
            "\n               FILTER (WHERE recent.outcome <> 'crashed')",
            "",
            inside="RECENT",
        ),
    ),
    *of_tests(
        ("tests/metrics/test_gauges.py",),
        Mutant(
            "no gauge counts prefetched jobs",
            "for state in STATES if",
            'for state in STATES if state != "prefetched" and',
            inside="_by_state",
        ),
    ),
]
