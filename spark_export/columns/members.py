"""Defines the Spark types that members of values may have, for the source and the sink."""

from typing import TYPE_CHECKING, Final

from raftlog.spark_export.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

SIMPLE: Final = (
    "string",
    "binary",
    "boolean",
    "tinyint",
    "smallint",
    "int",
    "bigint",
    "float",
    "double",
    "timestamp",
    "date",
)


def check_type(name: str, kind: "DataType") -> None:
    """Raises UsageError for a type that no format of values has, with the column or member of that type."""
    from pyspark.sql.types import ArrayType, DecimalType, MapType, StringType, StructType

    if isinstance(kind, StructType):
        for each in kind.fields:
            check_type(f"{name}.{each.name}", each.dataType)
    elif isinstance(kind, ArrayType):
        check_type(f"{name}[]", kind.elementType)
    elif isinstance(kind, MapType) and isinstance(kind.keyType, StringType):
        check_type(f"{name}[]", kind.valueType)
    elif kind.simpleString() not in SIMPLE and not isinstance(kind, DecimalType):
        raise UsageError(
            f"column {name} cannot be {kind.simpleString()}: take {', '.join(SIMPLE)}, decimal, struct, array, or a "
            f"map with string keys"
        )
