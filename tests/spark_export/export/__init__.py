"""Tests of spark_export/export."""
