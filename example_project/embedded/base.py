"""Django's PostgreSQL backend on a server that starts with the first connection."""

from typing import Any

from django.db.backends.postgresql import base, client

from .server import ensure


class DatabaseClient(client.DatabaseClient):
    """The client that `manage.py dbshell` starts. It does not connect first, so it has to start the server itself."""

    def runshell(self, parameters: list[str]) -> None:  # type: ignore[override]
        self.connection.settings_dict.update(ensure())
        super().runshell(parameters)


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection to this checkout's own server."""

    client_class = DatabaseClient

    def get_connection_params(self) -> dict[str, Any]:
        self.settings_dict.update(ensure())
        return super().get_connection_params()
