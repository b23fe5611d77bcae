"""Move finished jobs with their executions and kept log lines to the archive table or to a file."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from django.db import connections, transaction

from django_pgqueue.db.transactions import is_in_transaction
from django_pgqueue.durations import Duration, seconds
from django_pgqueue.exceptions import JobLocked
from django_pgqueue.ground.posix import CAN_FORK
from django_pgqueue.lifecycle import audit, history
from django_pgqueue.states import State

from .finished_pages import (
    Choice,
    Move,
    Pace,
    alias,
    check_rate,
    counted,
    finished_states,
    names_of_queues,
    names_of_tasks,
)

if CAN_FORK:
    import fcntl

READ_BYTES: Final = 256 * 1024
GZIP: Final = 31
"""Tells zlib to read one member of a gzip file."""
ARCHIVED_STATES: Final = (State.CANCELLED, State.SUCCEEDED)
"""The states of the jobs that are archived by default. A dead letter waits for a decision, so it is not among them."""
TABLE_BATCH: Final = 1000
"""Finished jobs that one transaction moves to the archive table at most."""
FILE_BATCH: Final = 200
"""Finished jobs that are in memory at once while they are written to a file."""


def check_system() -> None:
    """Raise `ValueError` if this system cannot lock files."""
    if not CAN_FORK:
        raise ValueError("an archive file needs flock(), which only POSIX systems have: use --table")


class ArchiveFile:
    """An open file of an archive, which no other process can open for as long as this one has it.

    `archiving` writes it. The module protects two rules. A line that was appended is on disk when `append()` returns. A
    process that is killed leaves at most one incomplete member, at the end of the file, which the next one removes.

    Attributes:
        last_batch: The jobs of the last complete member, each with its `finished_at`. A process that was killed may
            not have removed them from the database.
    """

    def __init__(self, path: Path) -> None:
        """Open or create a file, remove an incomplete member at its end, and read the last complete one.

        Raises:
            ValueError: Another process writes the file, or it is not a file of an archive.
            OSError: The file cannot be opened.
        """
        check_system()
        self.path = path
        is_new = not path.exists()
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            self._lock()
            self._end, text = self._last_member()
            self.last_batch = self._jobs_of(text)
            os.ftruncate(self._descriptor, self._end)
            os.fsync(self._descriptor)  # a killed process may have written the last member, but not synchronised it
            if is_new:
                _synchronise_directory(path.parent)
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{self.path} is written by another process: use another file, or wait for it") from None

    def append(self, lines: Sequence[str]) -> None:
        """Append a batch of lines, and return when they are on disk. If that fails, the file is as before."""
        member = gzip.compress("".join(f"{line}\n" for line in lines).encode())
        try:
            rest = memoryview(member)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
            os.fsync(self._descriptor)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(member)

    def close(self) -> None:
        """Close the file, which lets other processes open it."""
        os.close(self._descriptor)

    def _last_member(self) -> tuple[int, bytes]:
        """Return where the last complete member ends, and its content."""
        end, text = 0, b""
        try:
            for end, text in self._members():  # noqa: B007 -- the last values are used after the loop
                pass
        except zlib.error as error:
            raise ValueError(
                f"{self.path} is not a file of an archive, or is damaged after byte {end}: {error}. "
                "Nothing was changed: use another file"
            ) from None
        return end, text

    def _members(self) -> Iterator[tuple[int, bytes]]:
        """Yield the end and the content of each complete member. Only one of them is in memory at a time."""
        position, buffer = 0, b""
        decompressor, parts = zlib.decompressobj(GZIP), list[bytes]()
        while buffer or (buffer := os.pread(self._descriptor, READ_BYTES, position)):
            parts.append(decompressor.decompress(buffer))
            position += len(buffer) - len(decompressor.unused_data)
            buffer = decompressor.unused_data
            if decompressor.eof:
                yield position, b"".join(parts)
                decompressor, parts = zlib.decompressobj(GZIP), []

    def _jobs_of(self, text: bytes) -> dict[int, datetime]:
        try:
            documents = [json.loads(line) for line in text.splitlines()]
            return {int(each["id"]): datetime.fromisoformat(each["finished_at"]) for each in documents}
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ValueError(f"{self.path} is not a file of an archive: {type(error).__name__}. Use another") from None


def _synchronise_directory(directory: Path) -> None:
    """Make the entry of a new file in its directory durable."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Archived(NamedTuple):
    """The result of an archive.

    `resumed` of the jobs were in the file already: an earlier process was killed before it removed them from the
    database. `left` jobs were not archived; a repeated call tries them again. Unfinished work needs `needed` of them.
    The others were locked by another session, have changed, or the database refused to delete them (the log has the
    reason).
    """

    archived: int
    left: int
    resumed: int = 0
    needed: int = 0


def archive(
    *,
    older_than: Duration,
    file: str | Path | None = None,
    states: Iterable[str] = ARCHIVED_STATES,
    tasks: Iterable[Any] = (),
    queues: Iterable[str] = (),
    rate: float | None = None,
    by: str = "",
    reason: str = "",
    database: str | None = None,
    on_batch: Callable[[int], None] = lambda count: None,
) -> Archived:
    """Move finished jobs with their executions to the table `pgqueue_archived_job`, or to a compressed file.

    The log lines that the executions have kept move with them. Jobs stay while unfinished work needs them, as at the
    end of their retention.

    A move to the table is one transaction for each batch, so a job is always in exactly one of the tables. It is part
    of the transaction that is open on the database, if any.

    A move to a file deletes a batch in a transaction, waits until exactly these jobs are on disk, and commits. If the
    process is killed in between, call the function again with the same file: it removes the jobs that are in the file
    already, and writes none of them twice. With another file, the jobs of that batch are in both files.

    The first batch begins an entry of the audit, and each batch adds its jobs in its own transaction.

    Args:
        older_than: How long ago a job must have finished, in seconds or as a timedelta, by the database's clock.
        file: Path of the file to append to, in gzip format with one JSON document in each line. None: the table.
        states: States of the jobs: `"succeeded"`, `"cancelled"`, `"dead"`. By default the first two.
        tasks: Tasks, or names of tasks, whose jobs are moved. By default those of all tasks.
        queues: Names of queues whose jobs are moved. By default those of all queues.
        rate: Jobs to change per second at most. None: no limit.
        by: The person or program that archives, for people to read. 150 characters are stored.
        reason: Text for people to read.
        database: Alias of the database of the jobs. By default the database routers choose it.
        on_batch: Called after each batch with the number of jobs archived so far.

    Returns:
        How many jobs were moved, and how many were left.

    Raises:
        RuntimeError: A transaction is open, and `file` is given: a rollback would leave the jobs in both places.
        ValueError: A state is not final, `older_than` or `rate` is invalid, another process writes the file, or it is
            not a file of an archive.
        JobLocked: Another session has locked a job that an interrupted call has written to the file.
        OSError: The file cannot be written. The jobs of the last batch are still in the database.

    Example:
        >>> history.archive(older_than=timedelta(days=30), file="/srv/archive/2026-11.jsonl.gz")
    """
    check_rate(rate)
    choice = Choice(
        states=finished_states(states),
        task_names=names_of_tasks(tasks),
        queue_names=names_of_queues(queues),
        older_than_seconds=seconds(older_than),
    )
    connection, pace = connections[alias(database)], Pace(rate)
    entry = _ArchiveAudit(connection, _described(choice, file), by=by, reason=reason)
    if file is None:
        done = counted(connection, _to_table(connection, choice, pace, entry), pace, on_batch)
        entry.end()
        return Archived(done.changed, done.left, needed=done.needed)
    if is_in_transaction(connection):
        raise RuntimeError("archive() to a file cannot run inside a transaction: a rollback would restore the jobs")
    with closing(ArchiveFile(Path(file))) as target:
        resumed = _resume(connection, target)
        moves = _to_file(connection, choice, pace, target, entry)
        done = counted(connection, moves, pace, lambda count: on_batch(count + resumed))
        entry.end()
        return Archived(done.changed + resumed, done.left, resumed, done.needed)


def _described(choice: Choice, file: str | Path | None) -> dict[str, Any]:
    """Return the choice as the audit stores it."""
    names = {"tasks": list(choice.task_names), "queues": list(choice.queue_names)}
    target = "pgqueue_archived_job" if file is None else str(file)
    states = [state.value for state in choice.states]
    return {"states": states, **names, "older_than_seconds": choice.older_than_seconds, "to": target}


class _ArchiveAudit:
    """The entry of the audit for one archive. The first batch that moves jobs begins it."""

    def __init__(self, connection: Any, chosen: dict[str, Any], *, by: str, reason: str) -> None:
        self._connection = connection
        self._begin = partial(audit.begin_audit, connection, "archive", chosen, done_by=by, reason=reason)
        self._id: int | None = None

    def record(self, moved: Collection[int]) -> None:
        """Add the jobs of a batch, in its transaction."""
        if moved:
            self._id = self._id or self._begin()
            audit.record_audit(self._connection, self._id, sorted(moved))

    def end(self) -> None:
        """Write that the archive is complete."""
        if self._id is not None:
            audit.end_audit(self._connection, self._id)


def _resume(connection: Any, target: ArchiveFile) -> int:
    """Remove the jobs of the last batch in the file that a killed process has left in the database.

    Nothing can be appended while one of them is locked, because only the last batch of a file is read again.
    """
    from django_pgqueue.models import Job  # models can be imported only after the apps are loaded

    batch = target.last_batch
    removed = history.remove_archived(connection, batch) if batch else []
    rows = Job.objects.using(connection.alias).filter(pk__in=set(batch) - set(removed))
    if locked := [pk for pk, finished_at in rows.values_list("pk", "finished_at") if finished_at == batch[pk]]:
        raise JobLocked(
            f"job {locked[0]} is in {target.path}, but cannot be removed from the database: another session has locked "
            "it, unfinished work needs it again, or the database refuses it. Nothing was archived: try again"
        )
    return len(removed)


def _to_table(connection: Any, choice: Choice, pace: Pace, entry: _ArchiveAudit) -> Iterator[Move]:
    for jobs in choice.pages(connection, pace.limit(TABLE_BATCH)):
        with transaction.atomic(using=connection.alias):
            moved = history.archive(connection, jobs)
            entry.record(moved)
        yield jobs, moved


def _to_file(connection: Any, choice: Choice, pace: Pace, target: ArchiveFile, entry: _ArchiveAudit) -> Iterator[Move]:
    for jobs in choice.pages(connection, pace.limit(FILE_BATCH)):
        yield jobs, _move_to_file(connection, jobs, target, entry)


def _move_to_file(connection: Any, jobs: dict[int, datetime], target: ArchiveFile, entry: _ArchiveAudit) -> set[int]:
    """Move a batch: delete the rows, write them to the file, and commit.

    The rows are locked until then, so nobody can retry or delete one of them. A row that the database refuses to delete
    is not written.
    """
    with transaction.atomic(using=connection.alias):
        rows = history.read_for_archive(connection, jobs)
        if not rows:
            return set()
        removed = set(history.remove_archived(connection, {job_id: finished_at for job_id, finished_at, _ in rows}))
        entry.record(removed)
        if removed:
            target.append([line for job_id, _, line in rows if job_id in removed])
    return removed
