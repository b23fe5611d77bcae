"""What a project writes down about a task: retries, limits, breakers, chunks and steps."""
