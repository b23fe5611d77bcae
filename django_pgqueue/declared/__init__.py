"""This package has the values that a project writes into the options of a task, such as `Limit` and `Breaker`."""
