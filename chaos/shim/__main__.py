"""`python -m raftlog.chaos.shim`: prints the compiler that builds the preload library, or the reason why not."""

import sys
import tempfile
from pathlib import Path

from raftlog.chaos.shim.library import ShimMissing, build, compiler

if __name__ == "__main__":
    try:
        with tempfile.TemporaryDirectory() as folder:
            build(Path(folder))
        print(compiler())
    except ShimMissing as error:
        print(error, file=sys.stderr)
        sys.exit(1)
