"""Schedules: expressions, declarations in code (`cron()`, `every()`), and the options of a schedule's jobs."""
