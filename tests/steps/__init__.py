"""Tests of durable steps and of events."""
