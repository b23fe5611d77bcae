"""The options of a task: their one declaration, with what `using()` changes, and their validation."""
