"""A database backend that brings its own PostgreSQL server, for a demo and for tests."""
