"""Tests of the consensus machine, one file per module."""
