"""Single rows that the database refuses to write, among many that it accepts (F99 to F101)."""

from __future__ import annotations

import time

from tests import helpers
from tests.tools.faults.catalogue import fault
from tests.tools.faults.run import Run


@fault(
    "F99",
    "a user's trigger refuses the completion of one job with P0001, 54000 or 42501",
    invariant="the neighbours of that job are completed, and none of them runs twice",
    expected=(
        "3 dead jobs with the reason; 200 of 200 others succeed at their first attempt; a stop runs none of them again"
    ),
    quick=True,
)
def one_completion_is_refused(run: Run) -> str:
    bad = run.enqueue("plain", 3)
    others = run.enqueue("plain", 200)
    states = "ARRAY['P0001', '54000', '42501']"
    condition = f"NEW.id <= {max(bad)} AND NEW.state = 'succeeded'"
    run.sql(
        "CREATE FUNCTION users_rule() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN IF {condition} THEN RAISE EXCEPTION 'not this one' "
        f"USING ERRCODE = ({states})[1 + NEW.id % 3]; END IF; RETURN NEW; END$$"
    )
    run.sql("CREATE TRIGGER users_rule BEFORE UPDATE ON pgqueue_job FOR EACH ROW EXECUTE FUNCTION users_rule()")
    worker = run.worker()
    run.wait_until_done()
    run.stop(worker)
    assert run.states() == {"dead": 3, "succeeded": 200}, run.states()
    assert all(run.outcomes_of(job) == ["failed"] for job in bad)
    again = run.scalar("SELECT count(*) FROM pgqueue_job WHERE attempt <> 1")
    assert not again, again
    return f"3 dead jobs with the reason; {len(others)} of 200 others succeeded at their first attempt"


@fault(
    "F100",
    "a user's trigger refuses every update of one running job for a while",
    invariant=(
        "the job does not start again while the trigger exists; the other jobs are completed; the job's completion is "
        "written later"
    ),
    expected="1 execution; its completion is written within 10 s of the trigger's removal",
)
def every_end_is_refused(run: Run) -> str:
    [bad] = run.enqueue("plain")
    others = run.enqueue("plain", 100)
    run.sql(
        "CREATE FUNCTION users_rule() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN IF OLD.id = {bad} AND OLD.state = 'running' THEN RAISE EXCEPTION 'not this one'; END IF; "
        "RETURN NEW; END$$"
    )
    run.sql("CREATE TRIGGER users_rule BEFORE UPDATE ON pgqueue_job FOR EACH ROW EXECUTE FUNCTION users_rule()")
    worker = run.worker()
    run.wait_until(lambda: run.states().get("succeeded") == len(others))
    time.sleep(4)  # two leases
    assert run.states() == {"running": 1, "succeeded": 100}, run.states()
    run.sql("DROP FUNCTION users_rule CASCADE")
    waited = run.wait_until(lambda: run.states() == {"succeeded": 101}, 10)
    assert run.outcomes_of(bad) == ["succeeded"]
    run.stop(worker)
    return f"1 execution, completed {waited:.1f} s after the trigger was removed"


@fault(
    "F101",
    "a pause until infinity, a schedule whose next tick is at infinity, and jobs whose crash counter is at its limit",
    invariant="all other queues, schedules and jobs continue",
    expected="all other jobs succeed; lost jobs are rescued",
)
def infinite_instants(run: Run) -> str:
    connection = run.connection
    for table, name, _ in connection.execute(helpers.CHECKS).fetchall():  # old rows, or a superuser's, can break them
        run.sql(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    run.sql("INSERT INTO pgqueue_pause (kind, name, paused_until) VALUES ('queue', 'closed', 'infinity')")
    paused = run.enqueue("plain", queue_name="closed")
    run.sql(
        "INSERT INTO pgqueue_schedule (name, task_name, arguments, expression, next_run_at) "
        "VALUES ('bad', 'nobody.knows', '{\"args\":[],\"kwargs\":{}}', '0 0 1 1 *', 'infinity')"
    )
    jobs = run.enqueue("plain", 50)
    run.meddle("UPDATE pgqueue_job SET crashes = 32767 WHERE id = ANY(%s)", [jobs[:5]], jobs=jobs[:5])
    worker = run.worker()
    run.wait_until(lambda: run.states().get("succeeded") == 50)
    run.wait_until(lambda: not run.scalar("SELECT count(*) FROM pgqueue_schedule WHERE next_run_at = 'infinity'"))
    assert run.job(paused[0])["state"] == "ready"
    run.stop(worker)
    run.act("cancel", paused)
    return "50 of 50 other jobs succeeded; the schedule has a finite next tick again"
