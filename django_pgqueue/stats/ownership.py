"""Whether the database belongs to this installation, or its workers wait for an adoption.

`why()`, the causes and the doctor call it. The clone guard of the workers makes the same comparison on its own
connection.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from django.utils.translation import gettext as _

from django_pgqueue.db.statements import Connection, execute
from django_pgqueue.display import visible
from django_pgqueue.ground.identity import Identity
from django_pgqueue.settings.conf import get_settings

# Return the recorded installations, the OID of this database, and whether the role may read the server's id.
#
# Cost: the table has one row, or two after a restore
RECORDED_INSTALLATIONS: Final = """/* pgqueue:recorded_installations */
SELECT installation.system_identifier, installation.database_oid, installation.environment, installation.adopted_by,
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
       has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')
FROM pgqueue_installation AS installation
ORDER BY installation.id
LIMIT 10
"""
# Return the identifier of the server.
#
# A statement of its own, because PostgreSQL checks the privilege even if a CASE skips the call.
SERVER_IDENTIFIER: Final = """/* pgqueue:server_identifier */
SELECT system_identifier::text FROM pg_control_system()
"""


class Ownership(NamedTuple):
    """Whose database it is, as far as this process can see."""

    differences: str = ""
    """How a recorded installation differs from that of this process; "" if it does not."""
    adopted_by: str = ""
    """The name of the operator who recorded that installation."""
    is_certain: bool = True
    """Whether the identifiers of both servers are known, or do not matter."""


def read_ownership(connection: Connection) -> Ownership:
    """Compare the recorded installations with that of this process. Runs at most two read-only statements."""
    rows = execute(connection, RECORDED_INSTALLATIONS, {})
    if not rows:  # the first worker records its own
        return Ownership()
    *_, database_oid, may_read = rows[0]
    server = str(execute(connection, SERVER_IDENTIFIER, {})[0][0]) if may_read else ""
    is_certain = True
    for identifier, oid, environment, adopted_by, *_ in rows:
        is_known = bool(identifier and server)
        # This process may run as another role than the workers, and see more or less of the server than they do.
        recorded = Identity(identifier if is_known else server, oid, environment)
        if differences := recorded.differences(Identity(server, database_oid, get_settings().ENVIRONMENT)):
            return Ownership(visible(differences), visible(adopted_by))
        is_certain = is_certain and (is_known or identifier == server)
    return Ownership(is_certain=is_certain)


def other_installation(connection: Connection) -> str:
    """Return how the installation differs for which workers wait, "" if they do not wait for an adoption."""
    return read_ownership(connection).differences if get_settings().CLONE_GUARD == "refuse" else ""


def no_worker_text(differences: str) -> str:
    """Return that no worker runs. A worker that waits for an adoption is not registered, so it looks like none."""
    if not differences:
        return _("No worker is running: start `manage.py runworker`.")
    text = _(
        "No worker is running: the database belongs to another installation (%(differences)s), so workers wait for "
        "`manage.py pgqueue adopt`."
    )
    return text % {"differences": differences}
