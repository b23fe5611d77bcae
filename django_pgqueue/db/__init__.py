"""How this package uses PostgreSQL, without its statements. Import each name from the module that defines it.

* `engine_connection`: the worker's own connections.
* `statements`: run one statement on either kind of connection.
* `notifications`: NOTIFY.
* `transactions`: the caller's transaction on a Django connection.
* `errors`: classes of database errors.
* `server`: migrations, read-only servers, failovers.
* `fields`: columns of models.
* `migration_operations`: change the schema while workers run.
"""
