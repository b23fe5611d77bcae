"""Turn calls of tasks into rows of jobs: `plain` for any job, `unique` for jobs with a unique key."""
