"""Where an export is written: a folder of this machine, or a prefix of an object store."""
