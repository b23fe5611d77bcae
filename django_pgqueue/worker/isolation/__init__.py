"""Run isolated jobs, each in a process of its own."""
