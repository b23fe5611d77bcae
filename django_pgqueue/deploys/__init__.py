"""The check of a new release before it is deployed: do the stored calls of jobs and schedules fit the new code?

`manage.py pgqueue check-deploy` calls it, from the code of the new release, on the database that the old one uses.
"""
