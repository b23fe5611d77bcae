"""Why jobs do not run now: one ranked list of causes, each with its number of jobs and a sentence."""
