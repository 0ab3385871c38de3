"""Finds the schemas that imports keep in the store: the columns, the dialect and the format of their values."""

from collections.abc import Iterator

from raftlog.cluster.importer.formats.schema import PREFIX, Schema, decode
from raftlog.spark_export.errors import ExportError, UsageError
from raftlog.spark_export.fetch import door

Stored = dict[int, Schema]
"""The schema of each import, by its session; oldest first."""


def records(
    endpoints: tuple[str, ...], patience_s: float, *, is_linearizable: bool = True
) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values below PREFIX; if linearizable, of every record committed before. Raises UnreachableError."""
    stale: dict[str, object] = {} if is_linearizable else {"consistency": "stale"}
    for each in door.keys(door.NodeRotation(endpoints, patience_s), PREFIX, stale):
        yield door.data(each.key_b64), door.data(each.value_b64)


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
        names = [f"{schema.source} (session {session})" for session, schema in [*imports.items()][-10:]]
        there = f"the log has imports of {', '.join(names)}"
        none = "the log has no import with a schema (`raftlog import` puts one before its first record)"
        raise UsageError(f"option importSource is {source!r}; {there if names else none}")
    return found
