"""Claim jobs with a limit key."""
