"""Runs the same faults and checks against a real etcd."""
