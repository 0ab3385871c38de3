"""Finds the schemas that imports keep in the store: the columns, the dialect and the format of their values."""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from raftlog.cluster.api.encoding import from_b64, to_b64
from raftlog.cluster.api.kv import Ranged
from raftlog.cluster.importer.formats.schema import PREFIX, Schema, decode
from raftlog.spark_export.errors import ExportError, UsageError
from raftlog.spark_export.fetch import door

Stored = dict[int, Schema]
"""The schema of each import, by its session; oldest first."""

_ranged: Final = msgspec.json.Decoder(Ranged).decode
_PAGE: Final = 1_000  # the smallest limit of keys per page that a node may have by default


def records(
    endpoints: tuple[str, ...], patience_s: float, *, is_linearizable: bool = True
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values below PREFIX; if linearizable, of every record committed before. Raises UnreachableError."""
    rotation = door.NodeRotation(endpoints, patience_s)
    continuation: str | None = None
    while True:
        query: dict[str, object] = {"prefix_b64": to_b64(PREFIX), "limit": _PAGE, "encoding": "base64"}
        if not is_linearizable:
            query["consistency"] = "stale"
        if continuation is not None:
            query["continuation"] = continuation
        page = door.ask(endpoints, "/v1/kv", query, _ranged, rotation=rotation)
        for each in page.kvs:
            yield from_b64(each.key_b64 or "", "a node's answer"), from_b64(each.value_b64 or "", "a node's answer")
        continuation = page.continuation
        if not page.more:
            return


def stored(endpoints: tuple[str, ...], patience_s: float) -> Stored:
    """The schemas of all imports. Raises UnreachableError, or ExportError where a schema cannot be read."""
    found: Stored = {}
    for key, value in records(endpoints, patience_s):
        try:
            found[int(key.removeprefix(PREFIX))] = decode(value)
        except ValueError as error:
            raise ExportError(
                f"the schema of an import under key {key!r} cannot be read: {error}. With valueFormat raw, json "
                f"or csv it is not needed."
            ) from error
    return dict(sorted(found.items()))


def chosen(imports: Stored, source: str | None) -> Stored:
    """The imports that the option `importSource` means: all of a file's name, or the one of a session; all for None.

    Raises UsageError where there is none.
    """
    if source is None:
        return imports
    found = {session: schema for session, schema in imports.items() if source in (schema.source, str(session))}
    if not found:
        raise UsageError(f"option importSource is {source!r}; {_told(imports)}")
    return found


def _told(imports: Mapping[int, Schema]) -> str:
    if not imports:
        return "the log has no import with a schema (`raftlog import` puts one before its first record)"
    names = [f"{schema.source} (session {session})" for session, schema in [*imports.items()][-10:]]
    return f"the log has imports of {', '.join(names)}"
