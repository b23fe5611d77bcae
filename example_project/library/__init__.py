"""A small document library: an example of an application that uses the queue. `bin/demo` shows it."""
