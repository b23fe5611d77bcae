"""Django's PostgreSQL backend, over a server that starts with the first connection."""

from typing import Any

from django.db.backends.postgresql import base, client

from .server import ensure


class DatabaseClient(client.DatabaseClient):
    """What `manage.py dbshell` starts; it reads the settings without connecting first."""

    def runshell(self, parameters: list[str]) -> None:  # type: ignore[override]
        self.connection.settings_dict.update(ensure())
        super().runshell(parameters)


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection to this checkout's own server."""

    client_class = DatabaseClient

    def get_connection_params(self) -> dict[str, Any]:
        self.settings_dict.update(ensure())
        return super().get_connection_params()
