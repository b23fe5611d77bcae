"""Wait for a job to finish: `results` polls its row, `listener` shortens the wait by notifications."""
