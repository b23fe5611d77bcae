"""django-ox, by its README: the app, TASKS, `manage.py ox_worker`."""

from tests.tools.peers.brokers import asking
from tests.tools.peers.place import Peer
from tests.tools.peers.systems import django

TASKS = """
TASKS = {"default": {"BACKEND": "django_ox.backend.OxBackend"}}
"""

PEER = Peer(
    name="django-ox",
    distribution="django-ox",
    packages=("django-ox==1.9.1", *django.PACKAGES),
    files=django.project("django_ox", "django.tasks", TASKS),
    prepare=[django.MIGRATE],
    enqueue=django.ENQUEUE,
    worker=("-m", "django", "ox_worker"),
    look=asking("SELECT status || ', attempts ' || attempts FROM django_ox_oxtask"),
    succeeded="SUCCESSFUL",
    repair="nothing",
    takes_back=True,
)
