"""Runs one node with its HTTP API until it is stopped: `raftlog node` calls `run_node`.

`raftlog.cluster.node.local_cluster` starts whole clusters of processes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from aiohttp import web

from raftlog.cluster.config.cluster_file import ClusterFile, SettingsError
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.config.settings import LoadedSettings, Settings
from raftlog.cluster.files.folder import is_unmade
from raftlog.cluster.http.connections import Server
from raftlog.cluster.http.probes import ProbeServer
from raftlog.cluster.http.server import ApiRunner, build_runner
from raftlog.cluster.node.host import Host
from raftlog.cluster.node.parts import audit_of, open_disk, provider_of, tls_of, tracer_of
from raftlog.cluster.node.start_error import StartError, listen_for, not_listening
from raftlog.cluster.runtime import logging
from raftlog.cluster.runtime.door import Door
from raftlog.cluster.runtime.log_file import sink
from raftlog.cluster.runtime.metrics import Metrics
from raftlog.cluster.runtime.service_manager import ServiceManager
from raftlog.raft.codec.checks import Corrupt, UnknownVersion
from raftlog.statemachine.snapshot import CorruptSnapshot, UnknownSnapshot

if TYPE_CHECKING:
    from raftlog.cluster.node.tls import NodeTls

LISTEN_BACKLOG: Final = 4_096
"""Connections that wait to be accepted: Linux's default limit (net.core.somaxconn)."""
# Reference counts free most garbage here, so collections of old objects are made rare, and objects that live from the
# start are taken out of them (docs/promises.md: no long pause). Collections of young objects stay as they are. The
# counter that triggers them goes down with every old object that is freed. The newest entries with their effects are
# kept for a while and then dropped, so many more young objects gather meanwhile: 290,000 with a threshold of 100,000.
# A few thousand at a time also cost less, because they are still in a cache.
GC_THRESHOLDS: Final = (3_000, 1_500, 1_000)
# The writer thread needs the interpreter for microseconds between its system calls. By default it might wait 5 ms each.
SWITCH_INTERVAL_S: Final = 0.0005


def run_node(load: Callable[[], LoadedSettings], *, format_new: bool = False) -> int:
    """Runs the node with these settings in this process until SIGTERM or SIGINT.

    `format_new`: without a data folder it makes one, if this is the first start of the cluster. Returns its exit code
    (`NodeExit`). Logs to standard error. Each refusal is a line `not_started` with its reason.
    """
    try:
        loaded = load()
    except SettingsError as error:
        logging.configure("info", "auto")
        logging.get_logger().error("not_started", reason=str(error), exit=int(NodeExit.SETTINGS))
        return int(NodeExit.SETTINGS)
    settings = loaded.settings
    unopened = _open_log_file(loaded)
    logging.configure(settings.log.level, settings.log.format)
    logger = logging.get_logger(node=settings.node)
    if unopened is not None:
        logger.warning("log_file_not_opened", file=settings.log.file, error=str(unopened))
    try:
        if not __debug__:
            raise StartError(NodeExit.SETTINGS, "asserts are part of this program: start it without python -O")
        if loaded.cluster is None or not settings.node:
            raise StartError(
                NodeExit.SETTINGS,
                "a node needs `node` and `cluster_file` in its settings: raftlog node --config FILE --node ID",
            )
        if settings.stop_with_stdin:
            _refuse_deaf_stdin()
        allow_open_files()
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return int(runner.run(serve(loaded, loaded.cluster, logger, format_new=format_new)))
    except StartError as error:
        logger.error("not_started", reason=str(error), exit=int(error.code))
        return int(error.code)
    except Exception as error:
        logger.error("failed", exc_info=error)
        return int(NodeExit.FAILURE)


def _open_log_file(loaded: LoadedSettings) -> OSError | None:
    """Sends the log to log.file. Returns the error if it goes to standard error instead.

    A full disk, for instance, does not keep a node from starting."""
    log = loaded.settings.log
    if log.file:
        try:
            sink.open(loaded.folder / log.file, log.file_bytes_max, log.files_kept)
        except OSError as error:
            return error
    return None


def _refuse_deaf_stdin() -> None:
    """Refuses a file or /dev/null as standard input, because its end cannot be awaited."""
    mode = os.fstat(sys.stdin.fileno()).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or sys.stdin.isatty()):
        message = (
            "stop_with_stdin needs a pipe or a terminal as standard input; without one: --set stop_with_stdin=false"
        )
        raise StartError(NodeExit.SETTINGS, message)


def allow_open_files() -> None:
    """Raises the limit of open files to what the system allows this process.

    Each connection is one file. Many systems begin with a limit of 1,024, for programs that cannot handle more."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):  # the system allows less than its limit, as macOS does
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The event loop of uvloop if it is installed (extra `fast`)."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


async def serve(
    loaded: LoadedSettings, cluster: ClusterFile, logger: logging.Logger, *, format_new: bool = False
) -> NodeExit:
    """Runs the node on this event loop until a signal comes or it ends by itself. Raises StartError.

    `format_new`: as in `run_node`.
    """
    manager = ServiceManager.of(os.environ)
    try:
        return await _serve(loaded, cluster, logger, manager, format_new=format_new)
    finally:
        if manager is not None:
            manager.close()


async def _serve(
    loaded: LoadedSettings,
    cluster: ClusterFile,
    logger: logging.Logger,
    manager: ServiceManager | None,
    *,
    format_new: bool,
) -> NodeExit:
    """As `serve`, with reports to the service manager."""
    settings = loaded.settings
    logging.log_strays(asyncio.get_running_loop(), logger)
    tls, provider = tls_of(loaded, cluster, logger), provider_of(loaded, logger)
    tracer = tracer_of(loaded, cluster, logger)
    audit = audit_of(loaded)
    if settings.is_exposed and settings.security.insecure:
        logger.warning(
            "insecure",
            listen=settings.http.listen,
            meaning="every machine that reaches this node may do everything",
            mend="set up TLS and access control (docs/security.md), and leave --insecure out",
        )
    credentials = None if tls is None else tls.credentials
    stop = asyncio.Event()
    if format_new and is_unmade(loaded.data):
        from raftlog.cluster.node.first_start import make_folder  # here: few starts need a client

        _stop_when_asked(settings, stop)
        if not await make_folder(loaded, cluster, tls, logger, stop, manager):
            return NodeExit.OK
    disk, recovered = open_disk(loaded, cluster)
    for notice in recovered.notices:
        logger.warning("recovered", notice=notice)
    if recovered.floor:
        logger.warning(
            "healing",
            last=recovered.last.index,
            floor=recovered.floor,
            mend="nothing: it votes again once it has the lost entries again; docs/operations/disks.md, A damaged file",
        )
    metrics = Metrics()
    metrics.show_process()
    try:
        host = Host(settings, disk, recovered, metrics=metrics, logger=logger, cluster=cluster, credentials=credentials)
    except (UnknownVersion, UnknownSnapshot) as error:
        await disk.close()
        raise StartError(NodeExit.UNKNOWN_VERSION, f"{loaded.data}: {error}") from error
    except (Corrupt, CorruptSnapshot) as error:
        await disk.close()
        raise StartError(NodeExit.DATA, f"{loaded.data}: {error}; take the newest snapshot away") from error
    if tls is not None:
        tls.show(metrics)
    runner = build_runner(
        host.replica, settings, credentials=credentials, provider=provider, audit=audit, tracer=tracer
    )
    probes = ProbeServer(runner.service)
    gc.collect()  # before any client waits for this node: with many keys it takes a while
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        api_door, *other_doors = await _listen(host, runner, probes, loaded, tls)
    except StartError:
        await runner.cleanup()
        await host.stop()
        raise
    _stop_when_asked(settings, stop)
    if tls is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, tls.look)
        tls.on_change(partial(_end_revoked, host, runner))
    logger.info(
        "serving",
        url=f"{'https' if credentials else 'http'}://{settings.http.listen}",
        peer=settings.peer.listen,
        log=host.replica.log_id,
        data=str(loaded.data),
        boot=recovered.hard_state.boot,
        last=recovered.last.index,
    )
    host.ended.add_done_callback(lambda _: stop.set())
    if manager is not None:
        manager.look = partial(_state, host)
    await stop.wait()
    if manager is not None:
        manager.stopping()
    host.begin_stop()
    await runner.leave()
    await api_door.close()
    await runner.cleanup()
    await host.stop()
    for door in other_doors:  # a node that stops is still alive
        await door.close()
    await probes.shutdown()
    if provider is not None:
        provider.close()
    if audit is not None:
        audit.close()
    return host.ended.result()


def _stop_when_asked(settings: Settings, stop: asyncio.Event) -> None:
    """From now on SIGTERM, SIGINT and, if the settings say so, the end of standard input set `stop`."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if settings.stop_with_stdin:
        loop.add_reader(sys.stdin.fileno(), _stdin_closed, loop, stop)


def _state(host: Host) -> tuple[bool, str]:
    """Whether the node is ready, and its state in words, for the service manager."""
    node, status = host.replica, host.replica.status()
    leader = "" if status.leader is None or status.role == "leader" else f" of node {status.leader.node}"
    return node.is_ready, f"{status.role}{leader}, term {status.term}{'' if node.is_ready else ', not ready'}"


def _end_revoked(host: Host, runner: ApiRunner) -> None:
    host.transport.end_revoked()
    if isinstance(runner.server, Server):
        runner.server.end_revoked()


async def _listen(
    host: Host, runner: web.ServerRunner, probes: ProbeServer, loaded: LoadedSettings, tls: NodeTls | None
) -> list[Door]:
    """Listens for peers, for clients and, if the settings say so, for probes. Raises StartError."""
    settings = loaded.settings
    try:
        await host.start()
    except OSError as error:
        raise not_listening("peer.listen", settings.peer.listen, error) from error
    await runner.setup()
    assert runner.server is not None
    encryption = None if tls is None else tls.encryption(settings.limits)
    doors: list[Door] = []
    http, size = settings.http, LISTEN_BACKLOG
    await listen_for(doors, "http.listen", http.listen, runner.server, size, tls=encryption)
    await listen_for(doors, "http.probe_listen", http.probe_listen, probes, size, files_kept=0, linger_s=0)
    return doors


def _stdin_closed(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4_096):
        loop.remove_reader(sys.stdin.fileno())
        stop.set()
