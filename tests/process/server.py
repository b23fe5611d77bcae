"""A PostgreSQL of a test's own, to crash and restart at will."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from django_pgqueue.db.engine_connection import EngineConnection
from example_project.embedded.server import SETTINGS, Cluster, binaries, reachable

from .harness import django


class Server:
    """A cluster in `home`, a short path, with our tables in its database `postgres`.

    With `data`, the data directory of another one that does not run, it is a copy of that.
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
            subprocess.run(["cp", "-a", data, self.cluster.data], check=True)  # it belongs to the server's account
        self.cluster.start()
        if not data:
            django("migrate", "-v0", database=self.settings)

    def settings_for(self, database: str) -> dict[str, str]:
        """The keys of Django's DATABASES that lead to one of its databases."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": database,
            "PASSWORD": "",
            **self.cluster.connection_settings,
        }

    def connect(self, database: str = "postgres") -> EngineConnection:
        """A session of the test's own on it."""
        where = self.cluster.connection_settings
        return EngineConnection.connect(
            host=where["HOST"], port=where["PORT"], user=where["USER"], dbname=database, autocommit=True
        )
