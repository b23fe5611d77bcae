"""This package defines what a task is, finds it by its name, and gives a running job its context."""
