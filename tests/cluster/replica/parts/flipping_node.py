"""`raftlog …` in this process, with a fault: the value of the key `flip` is applied as another one.

`python -m tests.cluster.replica.parts.flipping_node` is such a command line where FLIP is set, and the ordinary one
where it is not.
"""

from __future__ import annotations

import os
from typing import Any

from raftlog.cluster.cli import main
from raftlog.statemachine.store import Store


def plant() -> None:
    """From now on."""
    real = Store.put

    def put(self: Store, key: bytes, value: bytes, *rest: Any) -> Any:
        return real(self, key, value + b"!" if key == b"flip" else value, *rest)

    setattr(Store, "put", put)  # noqa: B010 - the fault, and a type checker need not follow it


if __name__ == "__main__":
    if os.environ.get("FLIP"):
        plant()
    main.main()
