"""Tests of spark_export/analytics."""
