"""Figures of workflows, and why a node waits."""
