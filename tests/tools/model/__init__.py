"""The protocol of claims, fences and finishes as a small explicit-state model: `python -m tests.tools.model`."""
