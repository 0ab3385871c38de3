"""The tests: one folder per package, each itself a package so that `import raft` never finds `tests/raft`."""
