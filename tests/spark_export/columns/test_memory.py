"""Memory that is let go of is used again."""

import subprocess
import sys

from tests.support import HANG_S

_FAULTS = """
import resource
import numpy as np
from raftlog.spark_export.columns.memory import keep_freed

def fill():
    return [np.ones(3 << 20, np.uint8) for _ in range(8)]

{before}
for _ in range(2):
    fill()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
fill()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(before: str) -> int:
    """How many pages a process asks the system for when it fills 24 MiB for the third time."""
    ran = subprocess.run(
        [sys.executable, "-c", _FAULTS.format(before=before)],
        capture_output=True,
        text=True,
        check=True,
        timeout=HANG_S,
    )
    return int(ran.stdout)


def test_freed_memory_is_kept_for_the_next_slab() -> None:
    """Buffers of a slab's size come from the system once, not again for every slab: without this they do."""
    assert _faults("keep_freed()") < 100
    assert _faults("") > 1000
