"""Wait for a job to finish: `result_wait` polls its row, `completion_listener` shortens the wait by notifications."""
