"""Reads every format of an import: its dialect, lines, rows, times and schema; knows no cluster and no session."""
