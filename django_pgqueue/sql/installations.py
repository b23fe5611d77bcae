"""Statements on installations: who works on this database."""

from typing import Final

# Return the OID of this database, and the installations that have worked on it. Without any, the only row has the OID
# alone.
#
# Caller: lifecycle.installations.read_installations(), when a worker connects, and at each heartbeat of its supervisor
# Cost:   0.1 ms; the table has one row, or two after a restore
INSTALLATIONS: Final = """/* pgqueue:installations */
SELECT here.database_oid, installation.system_identifier, installation.database_oid, installation.environment,
       installation.adopted_by, installation.adopted_at::text
FROM (SELECT oid::bigint AS database_oid FROM pg_database WHERE datname = current_database()) AS here
LEFT JOIN pgqueue_installation AS installation ON true
ORDER BY installation.id
"""

# Return the identifier that the server got when its data directory was made. A standby has that of its primary.
#
# Caller: lifecycle.installations.read_installations()
#
# Every role may call the function, unless an administrator has revoked that. It is a statement of its own, because
# PostgreSQL checks the privilege even if a CASE skips the call.
SYSTEM_IDENTIFIER: Final = """/* pgqueue:system_identifier */
SELECT system_identifier::text FROM pg_control_system()
"""

# Record the first installation of a database.
#
# Caller: lifecycle.installations.record_installation(), when the first worker of a database starts
#
# The id is the time in microseconds. With ids of a sequence, the rows of two databases would have the same id, and
# restoring a dump into existing tables would refuse the row that says where the dump is from.
RECORD_INSTALLATION: Final = """/* pgqueue:record_installation */
INSERT INTO pgqueue_installation (id, system_identifier, database_oid, environment, adopted_at, adopted_by)
SELECT floor(1000000 * date_part('epoch', statement_timestamp() + %(time_shift)s::interval))::bigint,
       %(system_identifier)s, %(database_oid)s, %(environment)s,
       statement_timestamp() + %(time_shift)s::interval, %(adopted_by)s
WHERE NOT EXISTS (SELECT FROM pgqueue_installation)
ON CONFLICT DO NOTHING
"""

# Make one installation the only one of a database.
#
# Caller: lifecycle.installations.adopt(), for an operator
ADOPT: Final = """/* pgqueue:adopt */
WITH former AS (
    DELETE FROM pgqueue_installation
    WHERE system_identifier <> %(system_identifier)s
       OR database_oid <> %(database_oid)s
       OR environment <> %(environment)s
)
INSERT INTO pgqueue_installation (id, system_identifier, database_oid, environment, adopted_at, adopted_by)
VALUES (
    floor(1000000 * date_part('epoch', statement_timestamp() + %(time_shift)s::interval))::bigint,
    %(system_identifier)s, %(database_oid)s, %(environment)s,
    statement_timestamp() + %(time_shift)s::interval, %(adopted_by)s
)
ON CONFLICT (system_identifier, database_oid, environment) DO UPDATE
SET adopted_at = excluded.adopted_at, adopted_by = excluded.adopted_by
"""
