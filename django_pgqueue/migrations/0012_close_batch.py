"""The permission to close batches in the admin. The tables stay as they are."""

from django.db import migrations


class Migration(migrations.Migration):
    dependencies = [("pgqueue", "0011_step_event_index")]

    operations = [
        migrations.AlterModelOptions(
            name="jobbatch",
            options={
                "default_permissions": ("view",),
                "permissions": [("close_batch", "Can close batches")],
                "verbose_name": "batch",
                "verbose_name_plural": "batches",
            },
        ),
    ]
