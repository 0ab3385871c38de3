"""The columns and the names of numbers are those of the contract and of the code that gives them out."""

from raftlog.cluster.importer.formats.schema import LOG_COLUMNS
from raftlog.raft.types import EntryKind
from raftlog.spark_export.columns import schema
from raftlog.statemachine.commands import INTERNAL_FIRST, Operation, Result
from raftlog.statemachine.digest import LogRow


def test_names_are_those_of_the_enums() -> None:
    """spark_export may not import the enums, so its tables are held to them here."""
    for names, enum in ((schema.KINDS, EntryKind), (schema.OPERATIONS, Operation), (schema.RESULTS, Result)):
        assert {number: name for number, name in enumerate(names) if name} == {
            member.value: member.name.lower() for member in enum
        }
    assert schema.INTERNAL_FIRST == INTERNAL_FIRST
    numbers = (schema.APPEND, schema.PUT, schema.DELETE, schema.TXN)
    assert [Operation(number).name for number in numbers] == ["APPEND", "PUT", "DELETE", "TXN"]
    assert EntryKind(schema.KIND_COMMANDS) is EntryKind.COMMANDS
    assert EntryKind(schema.KIND_CONFIGURATION) is EntryKind.CONFIGURATION
    assert Result(schema.RESULT_APPLIED) is Result.APPLIED


def test_columns_are_those_of_the_digest() -> None:
    """The order in which the cluster hashes a row is the order of the columns."""
    assert tuple(name.removesuffix("_ms") for name in LogRow._fields) == schema.COLUMNS


def test_an_import_knows_the_columns_that_a_reader_has() -> None:
    """It may not import them, and says which columns of a file get another name beside them."""
    assert tuple(schema.SHOWN.names) == LOG_COLUMNS
