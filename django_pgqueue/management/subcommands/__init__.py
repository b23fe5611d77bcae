"""The subcommands of `manage.py pgqueue`, one module for each or for a few that belong together."""
