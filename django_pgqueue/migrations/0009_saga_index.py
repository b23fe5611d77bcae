"""The index of the compensations that are neither added nor forgotten. An interrupted build can be repeated."""

from django.db import migrations, models

from django_pgqueue.db.migration_operations import BuildIndex


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("pgqueue", "0008_saga")]

    operations = [
        BuildIndex(
            "jobstep",
            models.Index(
                condition=models.Q(("compensation__isnull", False)), fields=["job"], name="pgqueue_step_compensation"
            ),
        ),
    ]
