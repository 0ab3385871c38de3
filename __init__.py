"""The public interface of raftlog: the two clients, their types and their errors.

    from raftlog import Client, SyncClient

Each name is imported when it is asked for, so `import raftlog` costs nothing, and the blocking client needs no asyncio.
"""

import sys

if sys.argv[:1] and sys.argv[0].endswith("/raftlog"):  # the command line, which takes Ctrl-C back in its `main`
    import _signal  # type: ignore[import-not-found]  # `signal` itself imports enum first, which takes a while

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # until then it ends the process without a traceback

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if os.environ.get("RAFTLOG_PURE"):  # interpreted modules, also where compiled ones are installed
    from raftlog.cluster.runtime import build

    build.choose(os.environ)

if TYPE_CHECKING:
    from raftlog.cluster.client.aio.client import Client
    from raftlog.cluster.client.answers import (
        Change,
        Item,
        LogPage,
        Page,
        Progress,
        Record,
        TxnResponse,
        TxnResult,
        WatchEvent,
    )
    from raftlog.cluster.client.batch import UnknownInBatch
    from raftlog.cluster.client.blocking.client import SyncClient
    from raftlog.cluster.client.consumers import Consumer, SyncConsumer
    from raftlog.cluster.client.decisions import Policy, SessionBook
    from raftlog.cluster.client.errors import (
        ClientError,
        Compacted,
        CompareFailed,
        ConnectionsBusy,
        ConsumerFenced,
        ConsumerNotFound,
        Forbidden,
        KeyNotFound,
        NotApplied,
        OutcomeUnknown,
        SequenceSettled,
        SessionExpired,
        Unauthorized,
        Unavailable,
    )
    from raftlog.cluster.client.flow import Ticket
    from raftlog.cluster.client.new_records import NewRecord
    from raftlog.cluster.client.requests import Consistency, KeyWrite, compare, prefix_end, step
    from raftlog.cluster.security.tls import TlsFiles

__all__ = [
    "Change",
    "Client",
    "ClientError",
    "Compacted",
    "CompareFailed",
    "ConnectionsBusy",
    "Consistency",
    "Consumer",
    "ConsumerFenced",
    "ConsumerNotFound",
    "Forbidden",
    "Item",
    "KeyNotFound",
    "KeyWrite",
    "LogPage",
    "NewRecord",
    "NotApplied",
    "OutcomeUnknown",
    "Page",
    "Policy",
    "Progress",
    "Record",
    "SequenceSettled",
    "SessionBook",
    "SessionExpired",
    "SyncClient",
    "SyncConsumer",
    "Ticket",
    "TlsFiles",
    "TxnResponse",
    "TxnResult",
    "Unauthorized",
    "Unavailable",
    "UnknownInBatch",
    "WatchEvent",
    "compare",
    "prefix_end",
    "step",
]

_PLACES = {
    "aio.client": ("Client",),
    "answers": ("Change", "Item", "LogPage", "Page", "Progress", "Record", "TxnResponse", "TxnResult", "WatchEvent"),
    "batch": ("UnknownInBatch",),
    "blocking.client": ("SyncClient",),
    "consumers": ("Consumer", "SyncConsumer"),
    "decisions": ("Policy", "SessionBook"),
    "errors": (
        "ClientError",
        "Compacted",
        "CompareFailed",
        "ConnectionsBusy",
        "ConsumerFenced",
        "ConsumerNotFound",
        "Forbidden",
        "KeyNotFound",
        "NotApplied",
        "OutcomeUnknown",
        "SequenceSettled",
        "SessionExpired",
        "Unauthorized",
        "Unavailable",
    ),
    "flow": ("Ticket",),
    "new_records": ("NewRecord",),
    "requests": ("Consistency", "KeyWrite", "compare", "prefix_end", "step"),
}
_ROOMS = {
    "arrow": "raftlog.spark_export.tables.arrow",
    "sinks": "raftlog.cluster.sinks.sinks",
    "sources": "raftlog.cluster.importer.sources",
}
"""Public modules. `import *` leaves them out, because `arrow` needs further packages. Their names are text, so that no
import points upwards."""
_MODULES = {name: f"raftlog.cluster.client.{module}" for module, names in _PLACES.items() for name in names}
_MODULES["TlsFiles"] = "raftlog.cluster.security.tls"


def __getattr__(name: str) -> Any:
    """The public name, from the module that defines it. Raises AttributeError for any other name."""
    if name in _ROOMS:
        return import_module(_ROOMS[name])
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return found


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted({*__all__, *_ROOMS, *(name for name in globals() if name.startswith("__"))})
