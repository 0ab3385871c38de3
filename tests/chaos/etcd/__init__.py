"""Tests of chaos/etcd."""
