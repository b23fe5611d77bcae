"""The identity of an installation of the queue: its server, its database, and its environment.

Workers record it in the database (see `lifecycle.installations`). The clone guard, `stats` and the doctor compare it.
"""

from __future__ import annotations

from typing import NamedTuple


class Identity(NamedTuple):
    """The server, the database and the environment of an installation."""

    system_identifier: str
    """Empty if the role may not read it."""
    database_oid: int
    environment: str

    def differences(self, own: Identity) -> str:
        """Return how this installation differs from the own one, for people to read, or "" if it is the same."""
        found = []
        if self.environment != own.environment:
            found.append(f"environment {self.environment!r}, not {own.environment!r}")
        if self.system_identifier != own.system_identifier:
            found.append(f"server {self.system_identifier or 'unknown'}, not {own.system_identifier or 'unknown'}")
        if self.database_oid != own.database_oid:
            found.append(f"database with OID {self.database_oid}, not {own.database_oid}")
        return "; ".join(found)
