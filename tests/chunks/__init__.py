"""Tests of tasks with `chunk`."""
