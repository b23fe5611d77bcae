"""The Django app that the suite's workers and producers load: tasks that tell what they do, and failpoints."""
