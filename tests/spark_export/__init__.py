"""Tests of spark_export: the log as a table."""
