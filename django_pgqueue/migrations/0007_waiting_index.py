"""The index of waiting jobs. An interrupted build can be repeated."""

from django.db import migrations, models

from django_pgqueue.db.migration_operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("pgqueue", "0006_graphs")]

    operations = [
        BuildIndex(
            "job",
            models.Index(condition=models.Q(("state", "waiting")), fields=["id"], name="pgqueue_job_waiting"),
        ),
    ]
