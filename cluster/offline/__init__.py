"""Works on the files of stopped nodes: checks, prints, restores and recovers them."""
