"""Tests of races between two or more connections to one real database."""
