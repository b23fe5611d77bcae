"""Races between two or more connections to one real database."""
