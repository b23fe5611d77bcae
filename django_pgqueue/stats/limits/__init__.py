"""Figures of limits and of limit keys."""
