"""Names of pauses sort by bytes, as those of jobs: see 0015_name_collation."""

from django.db import migrations, models

from django_pgqueue.collations import SortByBytes
from django_pgqueue.db.migration_operations import LockTable


class Migration(migrations.Migration):
    dependencies = [
        ("pgqueue", "0015_name_collation_hold"),
    ]

    operations = [
        LockTable("pause"),
        SortByBytes(
            model_name="pause",
            fields={
                "name": models.CharField(db_collation="C", max_length=100, verbose_name="name"),
            },
        ),
    ]
