"""Windows and joins of a log, as functions from DataFrame to DataFrame.

The functions take rows of the log: an export, a batch read, or a stream. `events` takes any other frame too. They use
only Spark's built-in functions. So a function that works on a table works on a stream too, unless its docstring says
otherwise. docs/analytics.md is the guide; it answers other questions with Spark SQL.
"""

from raftlog.spark_export.analytics.access_log import access_fields
from raftlog.spark_export.analytics.events import events, key_changes, user_records
from raftlog.spark_export.analytics.joins import enrich, join_within, view
from raftlog.spark_export.analytics.values import infer_schema, stored_schema, with_columns
from raftlog.spark_export.analytics.windows import rates, sessions, sliding
from raftlog.spark_export.tables.value_schema import ValueSchema

__all__ = [
    "ValueSchema",
    "access_fields",
    "enrich",
    "events",
    "infer_schema",
    "join_within",
    "key_changes",
    "rates",
    "sessions",
    "sliding",
    "stored_schema",
    "user_records",
    "view",
    "with_columns",
]
