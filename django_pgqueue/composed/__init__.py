"""Jobs that belong together: batches, workflows, chains, and the events that jobs wait for."""
