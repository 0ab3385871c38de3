"""Handles `GET /v1/backup`: the whole state as of one index, streamed while the node goes on."""

from __future__ import annotations

import asyncio

from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.api.headers import BACKUP
from raftlog.cluster.http.exchange.call import READ_PARAMETERS, Call, Service, read_index
from raftlog.cluster.http.exchange.stream import SlowReader, Stream
from raftlog.cluster.records.backup_format import BackupEncoder, BackupHead
from raftlog.cluster.records.snapshot_stream import chunks_of
from raftlog.cluster.runtime import clock
from raftlog.statemachine.access import needs


async def get_backup(service: Service, call: Call) -> Stream:
    """The present state as a backup (docs/formats.md). A backup that breaks off has no end, and is invalid."""
    query = call.query(READ_PARAMETERS)
    limits = service.limits
    if service.open_backups >= limits.backups_max:
        raise ApiError(
            Code.BUSY,
            f"{service.open_backups} backups are being taken here: the limit is {limits.backups_max} "
            "(limits.backups_max); ask another node, or later",
        )
    service.open_backups += 1
    try:
        await read_index(service, call, query)
        service.access.check(call, needs.OPERATE)
        return await _stream(service, call)
    finally:
        service.open_backups -= 1


async def _stream(service: Service, call: Call) -> Stream:
    """Makes a part when the one before was read: a part and the socket's buffer bound the waiting bytes."""
    node = service.node
    machine = node.machine
    mark, index, configuration = node.state_mark()
    head = BackupHead(
        node.log_id, node.node_id, mark.index, mark.term, machine.revision, machine.digest(), clock.wall_ms()
    )
    encoder = BackupEncoder()
    until = service.clock() + service.limits.backup_max_ms / 1000
    with Stream(service, call) as stream, machine.snapshot() as walk:
        last_user = node.last_user_index
        stream.start(BACKUP)
        try:
            await stream.write(encoder.begin(head))
            for part in chunks_of(last_user, walk):
                if part:
                    await stream.write(encoder.part(part))
                service.access.look(call, needs.OPERATE)
                await asyncio.sleep(0)  # a write that need not wait does not yield: this does
                if node.machine is not machine or service.is_stopping or service.clock() >= until:
                    return stream  # without an end: the connection is cut, so that no client takes it for a backup
        except (SlowReader, ApiError):  # a backup has no place for an error: its end is missing
            return stream
        stream.end(encoder.end(mark, configuration, index))
    return stream
