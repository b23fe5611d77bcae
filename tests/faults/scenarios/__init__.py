"""Scenarios by topic; every module here is loaded by the catalogue."""
