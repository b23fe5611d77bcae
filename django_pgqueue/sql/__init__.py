"""All SQL statements of the package, as static text.

Only `lifecycle` runs them: each module here has the statements of the `lifecycle` module with the same name. `clauses`
has no statements, but the clauses that several modules share. `lifecycle.ticks` runs statements of `schedules`, so that
all statements with the columns of a schedule are in one file.

Tests enforce these rules:

* A statement is a string literal, or literals that are joined with named clauses when the module is imported. So each
  statement can be printed as it runs. Parameters are named, with the unit in the name. A statement that needs two forms
  is two statements: no function assembles SQL text. A clause stands above the first statement that uses it. Clauses of
  several modules are in `clauses`. If a difference between statements would be a defect, they share a clause.
* It begins with `/* pgqueue:<name> */`, so that you can find it in `pg_stat_activity` and in the server's log.
* It reads the time as `statement_timestamp() + %(time_shift)s::interval`. The shift is 0 outside tests. It never uses
  `now()`, which is the start of the transaction: an atomic completion would be dated before its own claim. The two
  claims that count open executions read `clock_timestamp()`, once: their snapshot is younger than their statement.
* A transition never waits for a row lock. It picks rows with FOR NO KEY UPDATE SKIP LOCKED, in id order, the execution
  and the job together, and writes them afterwards. Without SKIP LOCKED, one row that a forgotten session has locked
  would block a whole worker, and a user's bulk UPDATE would cause deadlocks. A skipped row is left for the next call.
  Only enqueueing with a unique key waits, for other transactions that take the same key (see `unique`).
* The fence of a worker's transitions is `outcome IS NULL` on its own execution. A rescue closes the execution, so a
  worker that was only slow matches no row. The job's `attempt` is not a fence, because a release decrements it. The
  job's state is not a fence either, because the job may be running again in another worker.
* An execution is identified by its id and the time of its claim, because ids restart after TRUNCATE ... RESTART
  IDENTITY or a restored dump. The time is compared in whole milliseconds,
  `floor(1000 * date_part('epoch', claimed_at))`. Statements return it as bigint: with `extra_float_digits` of -3 or
  less, a double would reach Python with fewer than its 13 digits.
* No statement depends on settings of the role that change how values are written, such as `extra_float_digits`. Engine
  connections set them, but Django's connections, and those behind a pooler that refuses options, do not.
* Rows are looked up from the parameters by LATERAL subqueries, and CTEs are joined to tables by primary key only. A
  queue is analysed while it is idle, so the planner expects one row everywhere. A join that it were free to choose
  would be the wrong one.

The comment above a statement has these headings, where they apply: Moves (the transition of the job), Caller, Fence,
Locks, Index, Cost.
"""

from . import (
    audit,
    batches,
    breakers,
    bulk_acts,
    chunks,
    claims,
    completions,
    ends,
    enqueueing,
    events,
    expiry,
    graphs,
    history,
    installations,
    leases,
    limit_overrides,
    limits,
    logs,
    needs,
    operator,
    pauses,
    pruning,
    remote_tokens,
    rescues,
    rollups,
    sagas,
    schedules,
    search_keys,
    steps,
    stored_calls,
    stranded,
    unique,
    worker_requests,
    workers,
)

__all__ = [
    "audit",
    "batches",
    "breakers",
    "bulk_acts",
    "chunks",
    "claims",
    "completions",
    "ends",
    "enqueueing",
    "events",
    "expiry",
    "graphs",
    "history",
    "installations",
    "leases",
    "limit_overrides",
    "limits",
    "logs",
    "needs",
    "operator",
    "pauses",
    "pruning",
    "remote_tokens",
    "rescues",
    "rollups",
    "sagas",
    "schedules",
    "search_keys",
    "steps",
    "stored_calls",
    "stranded",
    "unique",
    "worker_requests",
    "workers",
]
