"""Tests of spark_export/columns."""
