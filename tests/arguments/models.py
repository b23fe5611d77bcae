"""Models whose rows are arguments. The fixture `tables` creates their tables inside a test."""

import uuid

from django.db import models


class Visible(models.Manager["Parcel"]):
    """Hides rows, as many projects' default managers do."""

    def get_queryset(self):
        """Return the rows that are not hidden."""
        return super().get_queryset().filter(is_hidden=False)


class Parcel(models.Model):
    """A model with a UUID as its key, and a default manager that hides rows."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    is_hidden = models.BooleanField(default=False)

    objects = Visible()

    class Meta:
        app_label = "app"

    def __str__(self):
        return str(self.pk)


class FragileParcel(Parcel):
    """A model that inherits its key from another one."""

    class Meta:
        app_label = "app"


class Courier(models.Model):
    """A model with a text as its key."""

    code = models.CharField(primary_key=True, max_length=10)

    objects: models.Manager["Courier"]

    class Meta:
        app_label = "app"

    def __str__(self):
        return self.code


class FirstCourier(Courier):
    """A proxy: it has the rows of its base."""

    class Meta:
        app_label = "app"
        proxy = True
