"""`GET /v1/backup`: the whole state as of one index, streamed while the node goes on."""

from __future__ import annotations

import asyncio

from cluster import clock, wire
from cluster.backup_file import BackupEncoder, BackupHead
from cluster.http_call import READ_PARAMETERS, Call, Service, read_index
from cluster.http_stream import SlowReader, Stream
from cluster.snapshots import chunks_of
from cluster.wire import ApiError, Code


async def get_backup(service: Service, call: Call) -> Stream:
    """The state as of now as a backup (docs/formats.md); one that breaks off has no end, and is no backup."""
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
        return await _stream(service, call)
    finally:
        service.open_backups -= 1


async def _stream(service: Service, call: Call) -> Stream:
    """A part at a time, each made when the one before was taken: what waits is a part and the socket's buffer."""
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
        stream.start(wire.BACKUP)
        try:
            await stream.write(encoder.begin(head))
            for part in chunks_of(last_user, walk):
                if part:
                    await stream.write(encoder.part(part))
                await asyncio.sleep(0)  # a write that finds room does not wait: others have their turn
                if node.machine is not machine or service.is_stopping or service.clock() >= until:
                    return stream  # without an end: its connection is cut, and nobody takes it for a backup
        except SlowReader:
            return stream
        stream.end(encoder.end(mark, configuration, index))
    return stream
