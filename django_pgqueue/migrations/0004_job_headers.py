from django.db import migrations

import django_pgqueue.db.fields
from django_pgqueue.db.migration_operations import LockTable


class Migration(migrations.Migration):
    dependencies = [
        ("pgqueue", "0003_pause"),
    ]

    operations = [
        LockTable("job"),
        migrations.AddField(
            model_name="job",
            name="headers",
            field=django_pgqueue.db.fields.PlainJSONField(null=True, verbose_name="headers"),
        ),
    ]
