"""Turns entries, blocks, records, frames and messages into bytes and back.

All integers are little-endian. Golden bytes are in tests/raft/codec/test_codec.py and docs/formats.md. Every structure
starts with a version; a version, kind or flag that is not known raises `UnknownVersion`, bytes that fail their check
raise `Corrupt`, and nothing else is raised, whatever the bytes.
"""
