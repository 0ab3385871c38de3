"""Makes Spark find the raftlog data source by itself, without a register call.

Installed as the top-level module `pyspark_raftlog` (Spark imports every top-level module named `pyspark_*`
and registers its `DefaultSource`), so it must stay light: it imports the source and nothing else.
"""

from raftlog.spark_export.source.source import RaftlogDataSource as DefaultSource

__all__ = ["DefaultSource"]
