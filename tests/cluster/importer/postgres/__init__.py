"""Tests of cluster/importer/postgres."""
