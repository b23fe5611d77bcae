"""Faults of the storm that hit everything at once, or that operators cause for many jobs. See `storm`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import psycopg

from django_pgqueue.lifecycle import bulk_acts
from tests.tools.faults.lives import BY_OPERATOR
from tests.tools.faults.soak_faults import FAULTS

if TYPE_CHECKING:
    from tests.tools.faults.soak import Crew

STORM: Final[dict[str, Callable[[Crew], None]]] = {}
"""The faults that only the storm injects."""
LEASE_SECONDS: Final = 8.0
"""Of the storm's workers: longer than every fault that freezes a process or locks a table."""
HANGING_JOBS: Final = 40
ACT_JOBS: Final = 200
MOVED_QUEUE: Final = "moved"
CHOSEN: Final = {
    "retry": "state IN ('dead', 'cancelled', 'succeeded')",
    "delete": "state IN ('dead', 'cancelled', 'succeeded')",
    "cancel": "state = 'ready' AND run_after > now()",
    "move": "state = 'ready'",
}
"""Which jobs a bulk act of each kind is for. So many are cancelled only if they are due later."""
COLUMNS: Final = (
    ("pgqueue_job", "task_name"),
    ("pgqueue_job", "queue_name"),
    ("pgqueue_job", "unique_key"),
    ("pgqueue_execution", "error"),
    ("pgqueue_batch", "description"),
    ("pgqueue_step", "name"),
)
"""Columns of text whose type changes."""
TYPE_OF: Final = """
SELECT format_type(atttypid, atttypmod), quote_ident(collname)
FROM pg_attribute JOIN pg_collation ON pg_collation.oid = attcollation
WHERE attrelid = %s::regclass AND attname = %s
"""
NO_TABLE: Final = """
CREATE OR REPLACE FUNCTION storm_audit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO storm_table_that_is_gone VALUES (NEW.id);
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER storm_audit BEFORE {event} ON {table} FOR EACH ROW EXECUTE FUNCTION storm_audit();
"""
REFUSED: Final = (("pgqueue_job", "UPDATE"), ("pgqueue_execution", "INSERT"), ("pgqueue_execution", "UPDATE"))
"""The tables whose every change an application's trigger refuses for a while."""


def stormy(function: Callable[[Crew], None]) -> Callable[[Crew], None]:
    """Add a fault, under its function's name."""
    STORM[function.__name__.replace("_", " ")] = function
    return function


def change_schema(crew: Crew, statement: str) -> None:
    """Run a statement that locks a table, again after a deadlock with a worker or a lost session."""
    while True:
        try:
            crew.run.sql(statement)
        except (psycopg.errors.DeadlockDetected, psycopg.OperationalError):
            time.sleep(0.1)
        else:
            return


@stormy
def commits_hang(crew: Crew) -> None:
    """Let commits wait for a synchronous standby that is away, for longer than a lease, while reads work.

    Jobs with one attempt come due meanwhile: their claims are seen only when they have hung for longer than a lease.
    """
    crew.run.enqueue("once", HANGING_JOBS, max_attempts=1, delay_seconds=1)
    crew.run.configure("synchronous_standby_names", "storm_standby_that_is_away")
    try:
        time.sleep(crew.chance.uniform(1.2, 2.0) * LEASE_SECONDS)
    finally:
        crew.run.configure("synchronous_standby_names", None)


@stormy
def column_altered(crew: Crew) -> None:
    """Change the type of a column beside live workers, and change it back."""
    table, column = crew.chance.choice(COLUMNS)
    [[before, collation]] = crew.run.sql(TYPE_OF, [table, column])
    for kind in ("varchar" if before == "text" else "text", before):
        change_schema(crew, f"ALTER TABLE {table} ALTER COLUMN {column} TYPE {kind} COLLATE {collation}")
        time.sleep(crew.chance.uniform(0.5, 4))


@stormy
def column_added(crew: Crew) -> None:
    """Add a column beside live workers, and drop it."""
    table = crew.chance.choice(["pgqueue_job", "pgqueue_execution"])
    change_schema(crew, f"ALTER TABLE {table} ADD COLUMN storm_note text")
    time.sleep(crew.chance.uniform(0.5, 4))
    change_schema(crew, f"ALTER TABLE {table} DROP COLUMN storm_note")


@stormy
def trigger_without_its_table(crew: Crew) -> None:
    """Have a trigger of the application refuse every row for a while, because the table that it writes is gone."""
    table, event = crew.chance.choice(REFUSED)
    change_schema(crew, NO_TABLE.format(table=table, event=event))
    time.sleep(crew.chance.uniform(0.5, 4))
    change_schema(crew, f"DROP TRIGGER storm_audit ON {table}")


@stormy
def bulk_act(crew: Crew) -> None:
    """Retry, cancel, move or delete many jobs in batches, while one of the workers that execute the act is killed."""
    action = crew.chance.choice(list(CHOSEN))
    rows = crew.run.sql(f"SELECT id FROM pgqueue_job WHERE {CHOSEN[action]} ORDER BY random() LIMIT {ACT_JOBS}")
    if not rows:
        return
    ids = tuple(row[0] for row in rows)
    crew.run.note(BY_OPERATOR, act=action, jobs=list(ids))
    selection = bulk_acts.Selection(job_ids=ids, to_queue=MOVED_QUEUE if action == "move" else None)
    seen = bulk_acts.preview(crew.run.connection, action, selection)
    bulk_acts.request_act(crew.run.connection, action, selection, previewed_at=seen.at, done_by="ada", rate=100.0)
    if crew.chance.random() < 0.5:
        time.sleep(crew.chance.uniform(0, 1))
        FAULTS["process killed"](crew)


@stormy
def finished_deleted(crew: Crew) -> None:
    """Delete some finished jobs, as an operator does."""
    rows = crew.run.sql("SELECT id FROM pgqueue_job WHERE finished_at IS NOT NULL ORDER BY random() LIMIT 20")
    crew.run.act("delete", [row[0] for row in rows])


@stormy
def pooler_restarted(crew: Crew) -> None:
    """End the pooler with all its sessions, and start it again."""
    if crew.pooler is not None:
        crew.pooler.restart()
