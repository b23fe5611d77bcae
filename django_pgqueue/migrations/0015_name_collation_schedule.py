"""Names of schedules sort by bytes, as those of jobs: see 0015_name_collation."""

from django.db import migrations, models

from django_pgqueue.collations import SortByBytes
from django_pgqueue.db.migration_operations import LockTable


class Migration(migrations.Migration):
    dependencies = [
        ("pgqueue", "0015_name_collation_pause"),
    ]

    operations = [
        LockTable("schedule"),
        SortByBytes(
            model_name="schedule",
            fields={
                "name": models.CharField(db_collation="C", max_length=200, verbose_name="name"),
            },
        ),
    ]
