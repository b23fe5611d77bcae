"""What a task is at runtime: its definition, the registry of all tasks, and the context of a running job."""
