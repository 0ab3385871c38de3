"""Runs the steps of its arguments, in order, and prints their results: a process for tests of the preload library.

Each argument is one step, its words with commas between them: `create,NAME`, `pwrite,NAME,OFFSET,TEXT`, `sync,NAME`,
`sync_folder,NAME`, `rename,NAME,TO`, `threads,NAME,COUNT`, … A step that is done prints its number; an error its name.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import threading
from pathlib import Path


def step(verb: str, *words: str) -> None:
    """One step; raises OSError."""
    match verb, words:
        case "create", [name]:
            os.close(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644))
        case "append", [name, text]:
            with open(name, "ab", buffering=0) as file:
                file.write(text.encode())
        case "pwrite", [name, offset, text]:
            on(name, lambda file: os.pwrite(file, text.encode(), int(offset)))
        case "pwritev", [name, offset, *texts]:
            on(name, lambda file: os.pwritev(file, [text.encode() for text in texts], int(offset)))
        case "zeros", [name, size]:
            on(name, lambda file: os.pwrite(file, bytes(int(size)), 0))
        case "allocate", [name, size]:
            on(name, lambda file: os.posix_fallocate(file, 0, int(size)))
        case "truncate", [name, size]:
            on(name, lambda file: os.ftruncate(file, int(size)))
        case "sync", [name]:
            on(name, os.fdatasync)
        case "fsync", [name]:
            on(name, os.fsync)
        case "sync_folder", [name]:
            descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(descriptor)
            os.close(descriptor)
        case "rename", [name, to]:
            os.rename(name, to)
        case "unlink", [name]:
            os.unlink(name)
        case "mkdir", [name]:
            Path(name).mkdir()
        case "rmtree", [name]:
            shutil.rmtree(name)
        case "threads", [name, count]:
            threads = [threading.Thread(target=write_and_sync, args=(name, i)) for i in range(int(count))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        case _:
            raise SystemExit(f"no step {verb} {words}")


def on(name: str, work: object) -> None:
    """Does something with an open file."""
    descriptor = os.open(name, os.O_RDWR)
    try:
        work(descriptor)  # type: ignore[operator]
    finally:
        os.close(descriptor)


def write_and_sync(name: str, number: int) -> None:
    """Eight bytes at a place of its own, synced, fifty times; each is printed once it is durable."""
    descriptor = os.open(name, os.O_RDWR)
    for turn in range(1, 51):
        os.pwrite(descriptor, b"%08d" % turn, number * 8)
        os.fdatasync(descriptor)
        os.write(1, b"durable %d %d\n" % (number, turn))
    os.close(descriptor)


if __name__ == "__main__":
    for place, argument in enumerate(sys.argv[1:]):
        try:
            step(*argument.split(","))
        except OSError as error:
            print(place, errno.errorcode[error.errno or 0], flush=True)
        else:
            print(place, flush=True)
