"""A database backend that starts its own PostgreSQL server, for the demo and for tests."""
