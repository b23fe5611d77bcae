"""Work that every worker does for all: rescue lost jobs, prune finished jobs, fire schedules."""
