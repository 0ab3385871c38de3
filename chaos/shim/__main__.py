"""`python -m chaos.shim`: prints the compiler that builds the preload library; 1 and the reason where there is none."""

import sys
import tempfile
from pathlib import Path

from chaos.shim.library import ShimMissing, build, compiler

if __name__ == "__main__":
    try:
        with tempfile.TemporaryDirectory() as folder:
            build(Path(folder))
        print(compiler())
    except ShimMissing as error:
        print(error, file=sys.stderr)
        sys.exit(1)
