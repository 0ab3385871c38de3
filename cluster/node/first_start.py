"""Makes the data folder of a node at the first start of its cluster, once all members are there and none was led.

`raftlog node --format-new` calls it where the node has no data folder (`raftlog.cluster.node.process`). Until then the
node answers the other members that it has none, and asks them. A folder that is lost later is not made again: a member
that knows the log answers, or the node waits for the members that do not answer. docs/decisions/0033-first-start.md.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from aiohttp import web

from raftlog.cluster.api.errors import ApiError, Code, make_problem
from raftlog.cluster.config.cluster_file import ClusterFile, SettingsError, first_entry
from raftlog.cluster.config.exit_codes import NodeExit
from raftlog.cluster.config.settings import LoadedSettings
from raftlog.cluster.files.errors import DiskError
from raftlog.cluster.files.folder import DiskIdentity, format_node
from raftlog.cluster.http.exchange.answer import HttpAnswer, ServerIdentity, problem_answer
from raftlog.cluster.http.probes import SmallServer
from raftlog.cluster.http.routes.operator import TEXT
from raftlog.cluster.node.first_format import WasLed, ask_members
from raftlog.cluster.node.formatting import may_exist
from raftlog.cluster.node.start_error import StartError, folder_error, listen_for
from raftlog.cluster.node.tls import NodeTls
from raftlog.cluster.offline.places import check_outside
from raftlog.cluster.runtime import clock
from raftlog.cluster.runtime.door import Door
from raftlog.cluster.runtime.logging import Logger
from raftlog.cluster.runtime.service_manager import ServiceManager

ASK_EVERY_S: Final = 1.0
"""Seconds from the members' answers to the next questions."""
NAME_EVERY_S: Final = 30.0
"""Seconds between two lines of the log that name the same members."""
BACKLOG: Final = 128
"""Connections that wait to be accepted: members, probes, and clients that try again."""


class _WaitingServer(SmallServer):
    """Answers members, probes and clients while this node has no data folder."""

    def __init__(self, cluster: ClusterFile, node: int, connections_max: int) -> None:
        super().__init__(connections_max)
        self.waits_for = "its first answers"
        self._identity = ServerIdentity(cluster.cluster.log, node, 1.0)

    async def answer(self, request: web.BaseRequest) -> HttpAnswer:
        """Alive, in term 0 and without an entry, and not ready. Anything else needs a leader.

        Each answer ends its connection: the end of the wait then breaks no request of a client that asks again.
        """
        answer = self._answer(request.path)
        answer.keep_alive = False
        return answer

    def _answer(self, path: str) -> HttpAnswer:
        node = self._identity.node_id
        text = f"it has no data folder yet, and waits for {self.waits_for} to make one (--format-new)"
        if path == "/livez":
            return HttpAnswer(self._identity, b"ok\n", 0, 0, content_type=TEXT)
        if path == "/readyz":
            return HttpAnswer(self._identity, f"not ready: {text}\n".encode(), 0, 0, status=503, content_type=TEXT)
        error = ApiError(Code.NO_LEADER, f"{text}; ask again once the cluster is led")
        return problem_answer(
            self._identity, make_problem(error, node=node, request_id="", leader=None, index=0, term=0)
        )


async def make_folder(
    loaded: LoadedSettings,
    cluster: ClusterFile,
    tls: NodeTls | None,
    logger: Logger,
    stop: asyncio.Event,
    manager: ServiceManager | None = None,
) -> bool:
    """Waits until every other member answers that the cluster was never led, and makes the data folder.

    Returns False if `stop` is set before. Raises StartError: a member answers that the cluster was led.
    """
    settings = loaded.settings
    reason = ""
    if cluster.cluster.join:
        reason = f"it is for the first start of a cluster: raftlog format --join {settings.cluster_file}"
    elif cluster.cluster.first:
        reason = "the log of this cluster came from a backup: raftlog restore makes it again"
    elif len(cluster.node) == 1:
        reason = "a cluster of one node has no member that knows whether its log was led: make the folder with "
        reason += f"raftlog format {settings.cluster_file}"
    if reason:
        raise StartError(NodeExit.SETTINGS, f"--format-new makes no folder here: {reason}")
    server = _WaitingServer(cluster, settings.node, settings.limits.probe_connections_max)
    if manager is not None:
        manager.look = lambda: (False, f"no data folder yet, waits for {server.waits_for}")
    doors = await _open(loaded, tls, server)
    try:
        if not await _all_wait(loaded, cluster, server, logger, stop):
            return False
        own = cluster.of(settings.node)
        assert own is not None
        check_outside(loaded.data)
        format_node(
            loaded.data,
            DiskIdentity(cluster.cluster.log, own.id, own.incarnation),
            first_entry(cluster),
            segment_bytes=settings.disk.segment_bytes,
            first=may_exist(cluster.cluster.time_ms),
        )
        logger.info("data_folder_made", data=str(loaded.data), why="no member was ever led")
        return True
    except WasLed as error:
        raise StartError(NodeExit.DATA, str(error)) from error
    except SettingsError as error:
        raise StartError(NodeExit.SETTINGS, str(error)) from error
    except (DiskError, ValueError) as error:
        raise folder_error(error) from error
    finally:
        for door in doors:
            await door.close()
        await server.shutdown()


async def _open(loaded: LoadedSettings, tls: NodeTls | None, server: _WaitingServer) -> list[Door]:
    """Listens where the node will listen, for clients and probes. Raises StartError."""
    http, doors = loaded.settings.http, list[Door]()
    encryption = None if tls is None else tls.encryption(loaded.settings.limits)
    await listen_for(doors, "http.listen", http.listen, server, BACKLOG, tls=encryption)
    await listen_for(doors, "http.probe_listen", http.probe_listen, server, BACKLOG)
    return doors


async def _all_wait(
    loaded: LoadedSettings, cluster: ClusterFile, server: _WaitingServer, logger: Logger, stop: asyncio.Event
) -> bool:
    """Asks the other members until all answer at once. Returns False if `stop` is set before. Raises WasLed."""
    node, named, again_at = loaded.settings.node, dict[int, str](), 0.0
    while not stop.is_set():
        silent = await asyncio.to_thread(ask_members, cluster, [node], loaded.tls_files(), but=node)
        if not silent:
            return True
        names = [f"node {each}" for each in silent]
        server.waits_for = " and ".join([", ".join(names[:-1]), names[-1]] if names[:-1] else names)
        if silent.keys() != named.keys() or clock.monotonic() >= again_at:
            named, again_at = silent, clock.monotonic() + NAME_EVERY_S
            logger.warning(
                "waits_for_members",
                members=silent,
                meaning="there is no data folder; it is made once all members answer that the cluster was never led",
                mend="start them with --format-new; if this cluster was led before, end this node, and bring its "
                "folder back or replace the node: docs/operations/members.md, A wiped node",
            )
        with suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), ASK_EVERY_S)
    return False
