"""Run the durable steps of a job, and store how they ended."""
