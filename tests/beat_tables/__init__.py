"""A stand-in for the app django-celery-beat: the same label, and models with the same names and columns."""
