"""Tests of a start on damaged files: recovery, repair, and what proves an entry."""
