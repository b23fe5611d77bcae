"""Run one attempt at a job: call the task, and report how the attempt ended."""
