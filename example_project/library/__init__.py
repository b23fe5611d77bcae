"""A small document library: what an application of the queue looks like, and what `bin/demo` shows."""
