"""Tests of cluster/http/routes."""
