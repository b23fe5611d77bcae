"""The file of an archive: JSON lines, compressed by gzip, that grow by one member for each batch.

`archiving` writes it. The module protects two rules. A line that was appended is on disk when `append()` returns. A
process that is killed leaves at most one incomplete member, at the end of the file, which the next one removes.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from django_pgqueue.posix import CAN_FORK

if CAN_FORK:
    import fcntl

READ_BYTES: Final = 256 * 1024
GZIP: Final = 31
"""Tells zlib to read one member of a gzip file."""


class ArchiveFile:
    """An open file of an archive, which no other process can open for as long as this one has it.

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
        if not CAN_FORK:
            raise ValueError("an archive file needs flock(), which only POSIX systems have: use --table")
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
