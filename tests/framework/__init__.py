"""An app whose tasks are written for Django's tasks framework."""
