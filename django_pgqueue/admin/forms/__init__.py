"""Forms with which an operator makes, changes and confirms calls of tasks."""
