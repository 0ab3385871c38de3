"""Exports the log to files, and proves that they are what the cluster committed."""
