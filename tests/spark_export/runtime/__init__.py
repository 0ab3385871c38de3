"""Tests of spark_export/runtime."""
