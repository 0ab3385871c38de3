"""Parses the lines of a web server's access log into columns, by Spark's functions; common and combined format."""

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# Positions decide, and nothing behind the size: a line may lack its last quote and is good all the same.
_LINE: Final = r'^(\S+) \S+ (?:\S+(?: \S+)*?) \[([^\]]*)\] "((?:[^"\\]|\\.)*)" (\d{3}) (\d+|-)'


def access_fields(events: "DataFrame", line: str = "value") -> "DataFrame":
    """The events with host, method, path, status (int) and sent (bytes, bigint); null where a line does not have it."""
    text = F.col(line).cast("string")

    def group(number: int) -> "Column":
        return F.nullif(F.regexp_extract(text, _LINE, number), F.lit(""))

    request = F.split(group(3), " ")
    return events.withColumns(
        {
            "host": group(1),
            "method": F.get(request, F.lit(0)),
            "path": F.get(request, F.lit(1)),
            "status": group(4).try_cast("int"),
            "sent": group(5).try_cast("bigint"),
        }
    )
