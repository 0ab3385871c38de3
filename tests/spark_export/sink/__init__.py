"""Tests of spark_export/sink."""
