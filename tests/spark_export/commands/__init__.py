"""Tests of spark_export/commands."""
