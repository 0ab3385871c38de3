"""Spark's folder without the zip file of pyspark that is in it.

Spark puts that file first on the path of each Python process that it starts. What is imported from a zip is compiled
anew in every process, since there is nowhere to keep the bytecode: half a second for each streaming query and for each
worker. Where the file is not there, the same modules come from the installed package.
"""

import importlib.util
import os
from pathlib import Path

from spark_export import links
from spark_export.java import cache


def spark_home() -> Path | None:
    """The folder to put into SPARK_HOME before Spark starts; None: Spark finds its own, which is the user's, has no
    such file, or cannot be linked to from here."""
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
