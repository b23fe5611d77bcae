"""The end of a worker process: interrupt and release the jobs that still run."""
