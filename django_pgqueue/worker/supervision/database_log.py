"""Name the database in the log lines of a worker with several databases.

The ids of jobs are unique in one database only, so a line about a job must say which database it means. The supervisor
of each database calls `name_database()` once, before it forks, so that its processes name the database too.
"""

from __future__ import annotations

import logging
from typing import Final

NAMED: Final = ("django_pgqueue.worker", "django_pgqueue.jobs", "django_pgqueue.db")


class DatabaseFilter(logging.Filter):
    """Begins each message with the alias of the database, and adds the field `database`."""

    def __init__(self, alias: str) -> None:
        super().__init__()
        self._alias = alias

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record. Return True: every record passes."""
        name = self._alias.replace("%", "%%") if record.args else self._alias
        record.msg = f"[{name}] {record.msg}"
        record.database = self._alias
        return True


def name_database(alias: str) -> None:
    """Name this database in the records of the engine's loggers, in this process and those that it forks."""
    for name in NAMED:
        logging.getLogger(name).addFilter(DatabaseFilter(alias))
