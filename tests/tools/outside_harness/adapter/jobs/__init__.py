"""The app with the task of the benchmark."""
