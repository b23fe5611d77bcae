"""The metrics process: it serves the worker's health and the figures of its processes on the metrics port."""
