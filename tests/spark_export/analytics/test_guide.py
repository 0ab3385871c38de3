"""docs/analytics.md runs from its first block to its last, and prints what stands in it, where it says what.

`pytest tests/spark_export/analytics/test_guide.py --rewrite` writes what it prints now into the page; look at the
difference.
"""

import contextlib
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.spark_export.analytics.shop import shop
from tests.spark_export.server import Served, serving

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

PAGE = Path(__file__).resolve().parents[3] / "docs" / "analytics.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)


def test_guide_runs(spark: "SparkSession", request: pytest.FixtureRequest) -> None:
    """Each block prints what the page says, in one namespace, as a reader would run them."""
    text = PAGE.read_text(encoding="utf-8")
    wrong: list[str] = []
    names: dict[str, Any] = {}

    def run(block: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block[1], str(PAGE), "exec"), names)  # noqa: S102  # the page itself
        told = "".join(f"{line.rstrip()}\n" for line in printed.getvalue().strip().splitlines())
        if block[2] is not None and told != block[2]:
            wrong.append(f"{block[1]}prints\n{told}and the page says\n{block[2]}")
        return f"```python\n{block[1]}```\n" + (f"\n```text\n{told}```\n" if told else "")

    with serving(Served(shop())) as url:
        names["endpoints"] = url
        try:
            written = BLOCK.sub(run, text)
        finally:
            for query in spark.streams.active:
                query.stop()
            spark.catalog.clearCache()
    if request.config.getoption("--rewrite"):
        PAGE.write_text(written, encoding="utf-8")
    elif wrong:
        pytest.fail("\n\n".join(wrong), pytrace=False)
