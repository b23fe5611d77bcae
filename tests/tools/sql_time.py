"""Measure how long a call takes, and how much of it is SQL, as the application sees it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple


class SqlTime(NamedTuple):
    """What one call took."""

    seconds: float
    statements: list[tuple[str, float]]
    """Each statement and its seconds, with the transfer of its rows."""

    @property
    def sql_seconds(self) -> float:
        return sum(seconds for _, seconds in self.statements)


def sql_time(connection: Any, call: Callable[[], object]) -> SqlTime:
    """Run a function, and return what it took."""
    spent: list[tuple[str, float]] = []

    def timed(execute: Any, sql: str, *arguments: Any) -> Any:
        began = time.perf_counter()
        try:
            return execute(sql, *arguments)
        finally:
            spent.append((sql, time.perf_counter() - began))

    began = time.perf_counter()
    with connection.execute_wrapper(timed):
        call()
    return SqlTime(time.perf_counter() - began, spent)
