"""Decide which parameters an engine connection, or a job's connection in a worker, gets from this package.

`engine_connection` calls it. A parameter that a project sets outside this package is never replaced: not in OPTIONS,
not in a service file, and not in the environment of the process. The exceptions are `application_name`, and those
settings in `options` that an engine connection needs. `docs/production/connections.md` has the table.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from psycopg.conninfo import make_conninfo
from psycopg.pq import Conninfo, PGconn

NO_PORT: Final = "0"
"""libpq refuses this port after it has read its parameters, and before it looks up a host or opens a socket."""


def values_outside(params: Mapping[str, Any], names: Collection[str]) -> dict[str, str]:
    """Return those of the parameters that are set: in `params`, a service file or the environment.

    libpq itself reads them, so the values and their precedence are those of a connection with `params`. This opens no
    connection, and takes 0.1 ms. If libpq cannot read the service file, the result is empty, and connecting raises.
    """
    known = {option.keyword.decode() for option in Conninfo.get_defaults()}  # the others are psycopg's
    conninfo = make_conninfo("", **{name: value for name, value in params.items() if name in known} | {"port": NO_PORT})
    unconnected = PGconn.connect_start(conninfo.encode())
    try:
        read = {option.keyword.decode(): option.val for option in unconnected.info}
    finally:
        unconnected.finish()
    return {name: value.decode() for name in names if (value := read.get(name))}


def with_defaults(params: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return `params` with those defaults that are set nowhere else.

    psycopg limits the time of an attempt to connect itself, and does not read `connect_timeout` from a service file.
    The values from outside are therefore passed on.
    """
    return {**defaults, **values_outside(params, defaults), **params}
