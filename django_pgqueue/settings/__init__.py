"""The settings of a project, and what each of them may be."""
