"""Uses a cluster through the public client of the raftlog that its Python has; `test_upgrade.py` starts it.

`write NAME URL …` appends and puts, and reads back, until its input ends. It prints a line of JSON for each: the value,
its index, when it began and how long it took in seconds of the machine's clock, or the error.
`read URL …` prints the values of all appends in the order of the log.
"""

import json
import sys
import threading
import time

from raftlog import ClientError, SyncClient

DEADLINE_S = 120.0
"""Of each request, with all that the client tries again: an error is then none of a busy machine."""
BETWEEN_S = 0.01


def write(client: SyncClient, name: str) -> None:
    """One session, one write at a time. Ends when the input does."""
    ended = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=wait, daemon=True).start()
    number = 0
    while not ended.wait(BETWEEN_S):
        number += 1
        value = f"{name} {number}"
        began = time.monotonic()
        try:
            index = client.append(value.encode()).first
            client.put(name.encode(), value.encode())
            took = time.monotonic() - began
            item = client.get(name.encode())
            assert item is not None
            assert item.value == value.encode(), f"{value} was acknowledged, and {item} was read"
            told = {"value": value, "index": index, "began": began, "took": took}
        except ClientError as error:
            told = {"value": value, "error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), flush=True)


def main() -> None:
    """Runs one of both. Raises ClientError from `read`."""
    what, *rest = sys.argv[1:]
    name = rest.pop(0) if what == "write" else ""
    with SyncClient(rest, deadline_s=DEADLINE_S) as client:
        if what == "write":
            write(client, name)
        else:
            print(
                json.dumps([(record.value or b"").decode() for record in client.log(1) if record.operation == "append"])
            )


if __name__ == "__main__":
    main()
