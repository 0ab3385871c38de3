"""Turns the log's bytes into commands, rows, backups and snapshots, and back."""
