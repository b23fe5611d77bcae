"""django-tasks-db, by its README: the app, TASKS, `manage.py db_worker`."""

from tests.tools.peers.brokers import asking
from tests.tools.peers.place import Peer
from tests.tools.peers.systems import django

TASKS = """
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend", "QUEUES": ["default"]}}
"""

PEER = Peer(
    name="django-tasks-db",
    distribution="django-tasks-db",
    packages=("django-tasks-db==0.13.0", *django.PACKAGES),
    files=django.project("django_tasks_db", "django.tasks", TASKS),
    prepare=[django.MIGRATE],
    enqueue=django.ENQUEUE,
    worker=("-m", "django", "db_worker"),
    look=asking("SELECT status FROM django_tasks_database_dbtaskresult"),
    succeeded="SUCCESSFUL",
    repair="find rows RUNNING for too long, and enqueue the task again",
)
