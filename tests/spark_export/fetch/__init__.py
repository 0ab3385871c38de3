"""Tests of spark_export/fetch."""
