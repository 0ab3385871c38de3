"""Tests of spark_export/tables."""
