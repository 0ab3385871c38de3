"""Tests of spark_export/source."""
