"""Infrastructure that all parts of a worker process use: the service loop, connections, shared memory, and logging."""
