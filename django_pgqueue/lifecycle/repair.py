"""Repair rows that violate a check constraint, before a migration adds the constraint.

Called by the migration operation `AddRowChecks`.
"""

from __future__ import annotations

from django_pgqueue import sql
from django_pgqueue.db.statements import Connection, execute


def repair_rows(connection: Connection, model_name: str) -> None:
    """Change the rows of a model's table that violate its check constraints so that they satisfy them."""
    statements = {
        "job": sql.repair.REPAIR_JOBS,
        "execution": sql.repair.REPAIR_EXECUTIONS,
        "schedule": sql.repair.REPAIR_SCHEDULES,
        "pause": sql.repair.REPAIR_PAUSES,
    }
    execute(connection, statements[model_name], {})
