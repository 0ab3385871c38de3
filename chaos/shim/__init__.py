"""A preload library between a process and its files, built here with cc, and its driver in Python.

`raftlog.chaos.shim.driver.Shim` is what others use; docs/chaos.md says what it can do. Nothing in a node knows of
it.
"""
