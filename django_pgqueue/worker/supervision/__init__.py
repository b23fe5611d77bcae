"""The supervisor: the parent of the worker processes. It starts them, sends their heartbeats, and replaces them."""
