"""Checks of limits: whether tasks declare the limits of due jobs."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Final

from django_pgqueue import registry, stats

from .findings import Check, Level, Result, counted, listed, ok, quoted
from .session import Session


def _undeclared_limits(session: Session) -> Result:
    waiting = {limit.name: limit for limit in stats.limits(session.alias) if limit.due.value}
    undeclared = {name: limit.due.value for name, limit in waiting.items() if not limit.is_declared}
    if not undeclared:
        return ok("Tasks of this process declare the limits of all due jobs.", undeclared={})
    first = max(undeclared, key=undeclared.__getitem__)
    close = get_close_matches(first, registry.limits(), n=1)
    hint = f" Did you mean {quoted(close[0])} instead of {quoted(first)}?" if close else ""
    what = f"Due jobs have {counted(len(undeclared), 'limit')} that no task of this process declares: "
    return Result(
        Level.WARNING,
        f"{what}{listed(undeclared)}.{hint}",
        "Deploy the code that declares the limit, or cancel the jobs and enqueue them again.",
        {"undeclared": undeclared},
    )


LIMIT_CHECKS: Final = (
    Check(
        "undeclared_limits",
        "Warning: due jobs have a limit that no task of this process declares.",
        "Workers with the same code do not start these jobs.",
        _undeclared_limits,
    ),
)
