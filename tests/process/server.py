"""A private PostgreSQL server, which a test can stop, crash and restart."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from django_pgqueue.db.engine_connection import EngineConnection
from example_project.embedded.server import SETTINGS, Cluster, binaries, reachable

from .harness import django


class Server:
    """A cluster in `home`, which must have a short path. Its database `postgres` has our tables.

    With `data`, the data directory of a stopped cluster, the new cluster is a copy of that cluster.
    """

    def __init__(
        self,
        home: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] = SETTINGS,
        data: Path | None = None,
    ) -> None:
        self.cluster = Cluster(home / "server", reachable(binaries(), home / "copy"), port=port, settings=settings)
        self.settings = self.settings_for("postgres")
        if data:
            self.cluster.home.mkdir(mode=0o700)
            subprocess.run(["cp", "-a", data, self.cluster.data], check=True)  # the server's account must own the copy
        self.cluster.start()
        if not data:
            django("migrate", "-v0", database=self.settings)

    def settings_for(self, database: str) -> dict[str, str]:
        """Return an entry of Django's DATABASES for one of the server's databases."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": database,
            "PASSWORD": "",
            **self.cluster.connection_settings,
        }

    def connect(self, database: str = "postgres") -> EngineConnection:
        """Open a session for the test itself."""
        where = self.cluster.connection_settings
        return EngineConnection.connect(
            host=where["HOST"], port=where["PORT"], user=where["USER"], dbname=database, autocommit=True
        )
