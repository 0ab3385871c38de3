"""Tests of cluster/importer."""
