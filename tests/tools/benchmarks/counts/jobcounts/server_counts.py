"""What the server has counted between two moments: statements, buffers, rows, index entries, commits and WAL.

Statements and buffers are those of `pg_stat_statements`. Rows, index entries, commits and bytes are read from the WAL
itself by `pg_walinspect`, so an index entry counts only if it was really written. Full-page images do not count, nor do
records of the server's own processes.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg

WAL: Final = """
SELECT count(*) FILTER (WHERE resource_manager = 'Transaction' AND record_type LIKE 'COMMIT%%'),
       count(*) FILTER (WHERE resource_manager = 'Heap' AND record_type ~ '^(INSERT|UPDATE|HOT_UPDATE|DELETE)'),
       count(*) FILTER (WHERE resource_manager = 'Btree' AND (record_type IN ('INSERT_LEAF', 'INSERT_POST')
                               OR record_type LIKE 'SPLIT%%' AND description ~ '^level:? 0')),
       coalesce(sum(record_length - fpi_length), 0)
FROM pg_get_wal_records_info(%s::pg_lsn, %s::pg_lsn)
WHERE resource_manager NOT IN ('XLOG', 'Standby')
"""
STATEMENTS: Final = """
SELECT sum(calls), sum(shared_blks_hit + shared_blks_read)
FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = %s)
"""
SESSIONS: Final = """
SELECT pid FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class Observer:
    """Reads the counts of a database in a session of another database, so that it does not count itself.

    Args:
        database: The counted database.
    """

    def __init__(self, database: str) -> None:
        self._database = database
        self._connection: psycopg.Connection[Any] = psycopg.connect(dbname="postgres", autocommit=True)
        self._own: psycopg.Connection[Any] = psycopg.connect(dbname=database, autocommit=True)
        for name in ("pg_walinspect", "pg_stat_statements"):
            self._connection.execute(f"CREATE EXTENSION IF NOT EXISTS {name}".encode())
        self._began = "0/0"

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()
        self._own.close()

    def execute(self, statement: str) -> None:
        """Run a statement in the counted database, outside of a count."""
        self._own.execute(statement.encode())

    def check_succeeded(self, jobs: int) -> None:
        """Raise an error unless so many jobs have succeeded: a failed job costs something else."""
        [succeeded] = self._own.execute("SELECT count(*) FROM pgqueue_job WHERE state = 'succeeded'").fetchall()
        if succeeded != (jobs,):
            raise RuntimeError(f"{succeeded[0]} jobs have succeeded instead of {jobs}")

    def sessions(self) -> list[int]:
        """Return the process ids of the sessions of the counted database, except for the one of this observer."""
        return [pid for (pid,) in self._own.execute(SESSIONS.encode())]

    def begin(self) -> None:
        """Begin to count."""
        self._connection.execute("SELECT pg_stat_statements_reset()")
        self._flush()
        self._began = self._position()

    def counts(self) -> dict[str, float]:
        """Return what was counted since then."""
        ended = self._position()
        self._flush()
        statements = self._row(STATEMENTS, [self._database])
        wal = self._row(WAL, [self._began, ended])
        names = ("statements", "buffers", "commits", "rows", "index_entries", "wal_bytes")
        return dict(zip(names, map(float, (*statements, *wal)), strict=True))

    def _position(self) -> str:
        return str(self._row("SELECT pg_current_wal_insert_lsn()", [])[0])

    def _flush(self) -> None:
        """Write the WAL so far to its file, by a commit. A transaction that only notifies does not wait for that."""
        self._connection.execute("SELECT pg_logical_emit_message(true, 'jobcounts', '')")

    def _row(self, query: str, parameters: list[str]) -> tuple[Any, ...]:
        rows: list[tuple[Any, ...]] = self._connection.execute(query.encode(), parameters).fetchall()
        return rows[0]
