"""Shared memory in which one process counts, and which the metrics process reads.

All cells are aligned doubles. A process writes a cell with one store of 8 bytes, which the processors that CPython runs
on do not tear, so neither side needs a lock. Each memory has one writer at a time. A process that replaces another one
continues in the same memory, so totals never go back, and the counts of a process that was killed are kept.

A table gives a row of cells to each combination of labels. The writer stores the labels first and increases the number
of rows last, so a reader sees complete labels only. Names come from rows in the database, so the number of rows is
limited: further combinations share the last row, `OTHER`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from typing import Final

LABEL_BYTES: Final = 120
"""Bytes that a label keeps. Names have at most 100 characters."""
OTHER: Final = "other"
DURATIONS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0)
"""The upper limits of the buckets of times, in seconds. A last bucket has no limit."""
SIZES: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0)
"""The upper limits of the buckets of batch sizes."""
OF_DURATIONS: Final = len(DURATIONS) + 2
OF_SIZES: Final = len(SIZES) + 2
"""Cells of a histogram: one for each bucket, one for larger values, and one for the sum of the values."""

OUTCOMES: Final = ("succeeded", "failed", "dead", "cancelled", "snoozed", "released", "crashed")
RUN_AT: Final = len(OUTCOMES)
WAIT_AT: Final = RUN_AT + OF_DURATIONS
JOB_CELLS: Final = WAIT_AT + OF_DURATIONS
"""A row of jobs: the count of each outcome, the histogram of run times, and that of waits."""
JOB_ROWS: Final = 201
STATEMENT_CELLS: Final = 2
"""A row of statements: how many were run, and how many seconds they took."""
STATEMENT_ROWS: Final = 101

EXIT_REASONS: Final = ("crashed", "stopped", "empty", "recycled", "lease_lost", "stuck", "promoted", "foreign")
"""The names of `ExitReason`, in its order."""
RESCUED_AT: Final = 0
LEASES_LOST_AT: Final = 1
ENDED_AT: Final = 2
CLAIMS_AT: Final = ENDED_AT + len(EXIT_REASONS)
COMPLETIONS_AT: Final = CLAIMS_AT + OF_SIZES
SCHEDULES_AT: Final = COMPLETIONS_AT + OF_SIZES
FIGURES: Final = SCHEDULES_AT + OF_DURATIONS
"""The cells without labels: rescued jobs, lost leases, ends of processes by reason, and three histograms."""


class CountMemory:
    """The counts of one process."""

    def __init__(self) -> None:
        cells = FIGURES + 1 + JOB_ROWS * JOB_CELLS + 1 + STATEMENT_ROWS * STATEMENT_CELLS
        labels = (2 * JOB_ROWS + STATEMENT_ROWS) * LABEL_BYTES
        memory = mmap.mmap(-1, 8 * cells + labels)
        self.cells = memoryview(memory)[: 8 * cells].cast("d")
        self.figures = self.cells[:FIGURES]
        text = memoryview(memory)[8 * cells :]
        jobs_end = FIGURES + 1 + JOB_ROWS * JOB_CELLS
        names_end = 2 * JOB_ROWS * LABEL_BYTES
        self.jobs = CountTable(self.cells[FIGURES:jobs_end], text[:names_end], JOB_CELLS, labels=2)
        self.statements = CountTable(self.cells[jobs_end:], text[names_end:], STATEMENT_CELLS, labels=1)


class CountTable:
    """Rows of cells by their labels.

    Args:
        cells: The number of rows in use, then the cells of all rows.
        text: The labels of all rows, each in `LABEL_BYTES`, filled with zero bytes.
        width: Cells of a row.
        labels: Labels of a row.
    """

    def __init__(self, cells: memoryview[float], text: memoryview[int], width: int, *, labels: int) -> None:
        self.cells = cells
        self._text = text
        self._width = width
        self._labels = labels
        self._limit = (len(cells) - 1) // width
        self._starts: dict[tuple[str, ...], int] = {}
        self._read = 0

    def start_of(self, labels: tuple[str, ...]) -> int:
        """Return the index of the first cell of a row, and add the row if it is new. Only the writer calls this."""
        start = self._starts.get(labels)
        return self._add(labels) if start is None else start

    def rows(self) -> Iterator[tuple[tuple[str, ...], Sequence[float]]]:
        """Yield the labels and a copy of the cells of each row."""
        for row in range(int(self.cells[0])):
            start = 1 + row * self._width
            yield self._labels_of(row), self.cells[start : start + self._width].tolist()

    def _add(self, labels: tuple[str, ...]) -> int:
        rows = int(self.cells[0])
        while self._read < rows:  # the rows of a process that counted here before
            self._starts[self._labels_of(self._read)] = 1 + self._read * self._width
            self._read += 1
        cut = tuple(_cut(label) for label in labels)
        if cut not in self._starts and rows >= self._limit - 1:
            cut = (OTHER,) * self._labels
        if cut not in self._starts:
            for number, label in enumerate(cut):
                encoded = label.encode()
                at = (rows * self._labels + number) * LABEL_BYTES
                self._text[at : at + len(encoded)] = encoded
            self._starts[cut] = 1 + rows * self._width
            self._read = rows + 1
            self.cells[0] = rows + 1
        if len(self._starts) < 4 * self._limit:  # otherwise unlimited names would fill this process's memory
            self._starts[labels] = self._starts[cut]
        return self._starts[cut]

    def _labels_of(self, row: int) -> tuple[str, ...]:
        at = row * self._labels * LABEL_BYTES
        labels = bytes(self._text[at : at + self._labels * LABEL_BYTES])
        found = [labels[start : start + LABEL_BYTES] for start in range(0, len(labels), LABEL_BYTES)]
        return tuple(label.rstrip(b"\0").decode(errors="replace") for label in found)


def _cut(label: str) -> str:
    """Return the part of a label that fits. It contains no zero byte, because PostgreSQL stores none."""
    return label.encode()[:LABEL_BYTES].decode(errors="ignore")
