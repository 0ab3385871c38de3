"""Reads and writes the files of one data folder, without threads and without an event loop."""
