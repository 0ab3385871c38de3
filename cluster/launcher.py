"""Runs one node with its HTTP API until it is told to stop: `raftlog node` is `run_node` here.

`cluster.local_cluster` starts whole clusters of processes.
"""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from aiohttp import web

from cluster import logging, node_end
from cluster.cluster_file import ClusterFile, split_address
from cluster.disk import Disk
from cluster.disk_errors import DiskError, FolderReadOnly, FormatUnknown, NoSpace
from cluster.disk_open import Recovered
from cluster.http_listen import Door, listen
from cluster.http_server import build_runner
from cluster.log_file import sink
from cluster.metrics import Metrics
from cluster.node import Node
from cluster.settings import LoadedSettings, NodeExit
from raft.codec import Corrupt, UnknownVersion
from statemachine.snapshot import CorruptSnapshot, UnknownSnapshot

LISTEN_BACKLOG: Final = 4_096
"""Connections that wait to be taken: as many as Linux lets wait by default (net.core.somaxconn)."""
# Most garbage here is freed by reference counts, so collections of what is old are made rare, and what lives from the
# start is taken out of them (DESIGN section 4: no pause over 50 ms). Those of what is young are not: the count behind
# them goes down with every old object that is freed, so beside what is kept for a while and then dropped (the newest
# entries with their effects) far more young ones have gathered by then: 290,000 where 100,000 was the threshold. A few
# thousand at a time cost less in all, too: they are still in a cache.
GC_THRESHOLDS: Final = (3_000, 1_500, 1_000)
# The disk's thread needs the interpreter for microseconds between its system calls: by default it might wait 5 ms each.
SWITCH_INTERVAL_S: Final = 0.0005


class StartError(Exception):
    """A node that cannot start: the message says what and what to do, `code` is how its process ends."""

    def __init__(self, code: NodeExit, message: str) -> None:
        super().__init__(message)
        self.code = code


def run_node(loaded: LoadedSettings) -> int:
    """Runs the node in this process until SIGTERM or SIGINT; its exit code (`NodeExit`). Logs to standard error."""
    settings = loaded.settings
    unopened = _open_log_file(loaded)
    logging.configure(settings.log.level, settings.log.format)
    logger = logging.get_logger(node=settings.node)
    if unopened is not None:
        logger.warning("log_file_not_opened", file=settings.log.file, error=str(unopened))
    try:
        _refuse_optimised()
        if loaded.cluster is None or not settings.node:
            raise StartError(
                NodeExit.SETTINGS,
                "a node needs `node` and `cluster_file` in its settings: raftlog node --config FILE --node ID",
            )
        if settings.stop_with_stdin:
            _refuse_deaf_stdin()
        allow_open_files()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return int(runner.run(serve(loaded, loaded.cluster, logger)))
    except StartError as error:
        logger.error("not_started", reason=str(error), exit=int(error.code))
        return int(error.code)
    except Exception as error:
        logger.error("failed", exc_info=error)
        return int(NodeExit.FAILURE)


def _open_log_file(loaded: LoadedSettings) -> OSError | None:
    """Has the log go to log.file; why it goes to standard error instead: a full disk, say, does not keep a node from
    starting."""
    log = loaded.settings.log
    if log.file:
        try:
            sink.open(loaded.folder / log.file, log.file_bytes_max, log.files_kept)
        except OSError as error:
            return error
    return None


def _refuse_optimised() -> None:
    if not __debug__:
        raise StartError(NodeExit.SETTINGS, "asserts are part of this program: start it without python -O")


def _refuse_deaf_stdin() -> None:
    """Of a file or /dev/null no end can be awaited."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or sys.stdin.isatty()):
        message = (
            "stop_with_stdin needs a pipe or a terminal as standard input; without one: --set stop_with_stdin=false"
        )
        raise StartError(NodeExit.SETTINGS, message)


def allow_open_files() -> None:
    """Takes as many open files as the system leaves to this process to take: each connection is one, and many systems
    begin with 1,024, for programs that cannot count further."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):  # the system allows less than it says, as macOS does
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's where it is installed (extra `fast`)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def serve(loaded: LoadedSettings, cluster: ClusterFile, logger: logging.Logger) -> NodeExit:
    """Runs the node on this event loop until a signal comes or it ends by itself. Raises StartError."""
    settings = loaded.settings
    logging.log_strays(asyncio.get_running_loop(), logger)
    disk, recovered = _open_disk(loaded, cluster)
    for notice in recovered.notices:
        logger.warning("recovered", notice=notice)
    if recovered.floor:
        logger.warning(
            "healing", last=recovered.last.index, floor=recovered.floor,
            mend="nothing: it votes again once it has what it lost; docs/operations.md, A damaged file",
        )  # fmt: skip
    metrics = Metrics()
    try:
        node = Node(settings, disk, recovered, metrics=metrics, logger=logger, cluster=cluster)
    except (UnknownVersion, UnknownSnapshot) as error:
        await disk.close()
        raise StartError(NodeExit.UNKNOWN_VERSION, f"{loaded.data}: {error}") from error
    except (Corrupt, CorruptSnapshot) as error:
        await disk.close()
        raise StartError(NodeExit.DATA, f"{loaded.data}: {error}; take the newest snapshot away") from error
    runner = build_runner(node, settings)
    gc.collect()  # before anybody waits for this node: it takes a while where there are many keys
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        door = await _listen(node, runner, loaded)
    except StartError:
        await runner.cleanup()
        await node.stop()
        raise
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if settings.stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _stdin_closed, loop, stop)
    logger.info(
        "serving", url=f"http://{settings.http.listen}", peer=settings.peer.listen, log=node.log_id,
        data=str(loaded.data), boot=recovered.hard_state.boot, last=recovered.last.index,
    )  # fmt: skip
    node.ended.add_done_callback(lambda _: stop.set())
    await stop.wait()
    node_end.begin_stop(node)
    await runner.leave()
    await door.close()
    await runner.cleanup()
    await node.stop()
    return node.ended.result()


async def _listen(node: Node, runner: web.ServerRunner, loaded: LoadedSettings) -> Door:
    settings = loaded.settings
    try:
        await node.start()
    except OSError as error:
        raise _not_listening("peer.listen", settings.peer.listen, error) from error
    host, port = split_address(settings.http.listen, "http.listen")
    await runner.setup()
    try:
        return await listen(runner, host, port, LISTEN_BACKLOG)
    except OSError as error:
        raise _not_listening("http.listen", settings.http.listen, error) from error


def _not_listening(key: str, address: str, error: OSError) -> StartError:
    if error.errno == errno.EADDRINUSE:
        message = f"{key} {address} is in use: stop what listens there, or give this node another {key}"
        return StartError(NodeExit.ADDRESS_IN_USE, message)
    return StartError(NodeExit.SETTINGS, f"{key} {address}: {error.strerror}")


def _open_disk(loaded: LoadedSettings, cluster: ClusterFile) -> tuple[Disk, Recovered]:
    settings = loaded.settings
    own = cluster.of(settings.node)
    assert own is not None, "load_settings checks this"
    try:
        disk, recovered = Disk.open(
            loaded.data, log_id=cluster.cluster.log, node=settings.node, segment_bytes=settings.disk.segment_bytes
        )
    except (FolderReadOnly, NoSpace) as error:
        raise StartError(NodeExit.READ_ONLY, str(error)) from error
    except FormatUnknown as error:
        raise StartError(NodeExit.UNKNOWN_VERSION, str(error)) from error
    except (DiskError, ValueError) as error:
        raise StartError(NodeExit.DATA, str(error)) from error
    return disk, recovered


def _stdin_closed(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4_096):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()
