"""Explain why a job of a workflow waits. `explanation` calls this module for jobs in the state `waiting`."""

from __future__ import annotations

from typing import Final

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.registry import in_words

from . import graph_queries

SHOWN_JOBS: Final = 3


def open_dependencies(connection: Connection, job_id: int) -> str:
    """Return a sentence that names the first jobs that a job waits for."""
    found = execute(connection, graph_queries.OPEN_DEPENDENCIES, {"job_id": job_id, "limit": SHOWN_JOBS + 1})
    if not found:
        return "All jobs that it depends on have ended. A worker will make it ready, or cancel it."
    shown = ", ".join(f"job {needs_id} ({in_words(name)}, {state})" for needs_id, name, state in found[:SHOWN_JOBS])
    return f"It waits for {shown}{' and others' if len(found) > SHOWN_JOBS else ''}."
