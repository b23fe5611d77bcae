"""The parts of the `demo` command: enqueue jobs, show progress, compute totals, and check the results."""
