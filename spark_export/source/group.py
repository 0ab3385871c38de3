"""Moves a consumer group of the cluster along with a streaming query: `groupId`.

The group shows the query's position and lag to everybody, and says where a query without a checkpoint begins. The
checkpoint stays what Spark itself goes by: the group follows it, at most once a second, and never on an idle log. One
query owns a group: a second one that claims it ends the first with an error that says so.
"""

import logging
import os
import socket
import time
from collections.abc import Callable
from typing import Final

from raftlog.cluster.api.values import SHARD
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.errors import (
    ClientError,
    ConsumerFenced,
    ConsumerNotFound,
    NotApplied,
    OutcomeUnknown,
    Unavailable,
)
from raftlog.spark_export.errors import ExportError, FencedError, UnreachableError
from raftlog.spark_export.fetch import door
from raftlog.spark_export.fetch.offsets import StreamOffset
from raftlog.spark_export.fetch.options import SourceOptions
from raftlog.spark_export.source import bounds

REPORT_EVERY_S: Final = 1.0
"""A report is a record of the log: an idle query makes none, a busy one no more than this."""
REPORT_S: Final = 5.0
"""How long a report may take before it is put off: the query does not wait for it any longer."""

_LOG: Final = logging.getLogger("raftlog.spark")


class Group:
    """The group of one streaming query; for one thread."""

    def __init__(self, name: str, options: SourceOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._options = options
        self._clock = clock
        self._client = SyncClient(options.endpoints, sessions=False, deadline_s=REPORT_S)
        self._consumer = self._client.consumer(name)
        self._position = 0  # of the group, since it was claimed
        self._may_go_back = True  # the first report of a process: its checkpoint or its options say where it stands
        self._tried_at: float | None = None

    def first(self) -> StreamOffset:
        """Where a query without a checkpoint begins: where the starting options say, else where the group stands.

        Raises as `bounds.first_offset`.
        """
        wanted = bounds.first_offset(self._options)
        self._claim(wanted.next)
        if self._options.is_start_given or self._position == wanted.next:
            return wanted
        page = door.bounds(self._options.nodes)
        return StreamOffset(page.log, bounds.kept(self._options, self._position, page.oldest))

    def reached(self, offset: StreamOffset, *, is_last: bool = False) -> None:
        """The query has done everything before this offset. Raises FencedError."""
        if offset.revision is not None or offset.next == self._position:
            return
        now = self._clock()
        if not is_last and self._tried_at is not None and now - self._tried_at < REPORT_EVERY_S:
            return
        self._tried_at = now
        if self._consumer.owned is None:
            self._claim(offset.next)
            if offset.next == self._position:
                return
        try:
            self._consumer.commit(offset.next, reset=self._may_go_back and offset.next < self._position)
        except (ConsumerFenced, ConsumerNotFound) as error:
            raise FencedError(
                f"another query or an operator took consumer group {self._name!r} over ({error.message}). Two queries "
                f"need two names (option groupId); to take this one back, start this query again"
            ) from error
        except (Unavailable, OutcomeUnknown) as error:
            _LOG.warning("the position %s of group %s is reported later: %s", offset.next, self._name, error)
        except NotApplied as error:
            raise ExportError(f"consumer group {self._name!r}: {error.message}") from error
        else:
            self._position, self._may_go_back = offset.next, False

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def _claim(self, start: int) -> None:
        """Owns the group from now on. A new one begins at `start`."""
        until = self._clock() + self._options.patience_s
        while True:
            try:
                owner = f"Spark query on {socket.gethostname()}, process {os.getpid()}"
                self._position = self._consumer.claim(owner=owner, start=start).position.next[SHARD]
                return
            except (Unavailable, OutcomeUnknown) as error:  # claimed twice is as good as once
                if self._clock() >= until:
                    raise UnreachableError(f"consumer group {self._name!r} could not be claimed: {error}") from error
            except ClientError as error:
                raise ExportError(f"consumer group {self._name!r}: {error.message}") from error
