"""Holds the background jobs of a replica: snapshots, retention, backfill, disk space, damage."""
