"""Makes a copy of Spark's folder, by links, without its zip file of pyspark.

Spark puts that file first on the path of each Python process that it starts. Python has no place to keep the bytecode
of modules in a zip, so every process compiles them again. That costs each streaming query and each worker half a
second. Without the file, the same modules come from the installed package.
"""

import importlib.util
import os
from pathlib import Path

from raftlog.spark_export.runtime import links
from raftlog.spark_export.runtime.java import cache


def spark_home() -> Path | None:
    """The folder to put into SPARK_HOME before Spark starts.

    None: Spark finds its own. It was set by the user, has no such file, or cannot be linked to.
    """
    spec = importlib.util.find_spec("pyspark")
    if "SPARK_HOME" in os.environ or spec is None or spec.origin is None:
        return None
    own = Path(spec.origin).resolve().parent
    if not (own / "python" / "lib" / "pyspark.zip").exists():
        return None
    try:
        return links.made(cache(), "spark-home", str(own), lambda folder: links.link(own, folder, but={"python"}))
    except OSError:
        return None
