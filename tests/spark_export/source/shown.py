"""Rows of a served log as a task shows them, without Spark's session."""

from typing import Any

from pyspark.sql.types import StructType

from raftlog.spark_export.fetch.options import parse_options
from raftlog.spark_export.fetch.ranges import Range
from raftlog.spark_export.source import bounds
from raftlog.spark_export.source.views import default_schema, view
from tests.spark_export.server import LOG_ID, Served, serving


def shown(
    served: Served,
    start: int = 1,
    stop: int | None = None,
    schema: StructType | None = None,
    revision: int | None = None,
    **options: Any,
) -> list[dict[str, Any]]:
    """The rows of [start, stop) as a task gives them."""
    with serving(served) as url:
        given = {"endpoints": url, "timeoutSeconds": "1", **{name: str(value) for name, value in options.items()}}
        asked = schema or default_schema(given)
        parsed = parse_options(given)
        if parsed.as_of is not None:
            _, index = bounds.state_index(parsed)
            start, stop = 1, index + 1
        wanted = Range((url,), LOG_ID, start, stop or served.last + 1, patience_s=1)
        made = view(parsed, asked)
        batches = list(made.read(wanted) if revision is None else made.snapshot(wanted, revision))
        from pyspark.sql.pandas.types import to_arrow_schema

        for batch in batches:
            assert batch.schema.names == asked.names
            assert batch.schema.types == to_arrow_schema(asked, timezone="UTC").types
        return [row for batch in batches for row in batch.to_pylist()]
