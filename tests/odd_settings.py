"""Settings of a role or a database that change how values are written, or what statements mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from django.db import connections

from django_pgqueue.db.engine_connection import EngineConnection

READABLE = {
    "extra_float_digits": "-15",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Australia/Lord_Howe",
    "bytea_output": "escape",
    "standard_conforming_strings": "off",
    "backslash_quote": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "xmloption": "document",
    "quote_all_identifiers": "on",
    "default_transaction_isolation": "repeatable read",
}
"""Settings with which Django's own connections work."""
UNREADABLE = {"DateStyle": "German, DMY", "default_transaction_isolation": "serializable"}
"""Settings with which Django itself cannot read a time, or needs retries."""


@contextmanager
def odd_database(admin: EngineConnection, settings: Mapping[str, str]) -> Iterator[None]:
    """Give the test database these settings, for new sessions. Django's connection is opened again."""
    name = connections["default"].ops.quote_name(connections["default"].settings_dict["NAME"])
    try:
        for setting, value in settings.items():
            admin.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'", prepare=False)
        connections["default"].close()
        yield
    finally:
        connections["default"].close()
        admin.execute(f"ALTER DATABASE {name} RESET ALL", prepare=False)
