"""Tests of cluster/importer/formats."""
