"""The options of a task: their one declaration, their validation, and what `using()` changes."""
