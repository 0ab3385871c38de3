"""Questions that one asks of a log, as functions from DataFrame to DataFrame.

They take rows of the log (an export, a batch read, or a stream) and use Spark's built-in functions alone, so that what
works on a table works on a stream too; the docstring says where that is not so. docs/analytics.md is the guide.
"""

from spark_export.analytics.access_log import access_fields
from spark_export.analytics.audit import audit, duplicates, gaps, late
from spark_export.analytics.events import events, key_changes, user_records
from spark_export.analytics.joins import enrich, join_within, view
from spark_export.analytics.state import change_feed, state_at
from spark_export.analytics.terms import terms
from spark_export.analytics.windows import rates, sessionise, sessions, top_keys

__all__ = [
    "access_fields", "audit", "change_feed", "duplicates", "enrich", "events", "gaps", "join_within", "key_changes",
    "late", "rates", "sessionise", "sessions", "state_at", "terms", "top_keys", "user_records", "view",
]  # fmt: skip
