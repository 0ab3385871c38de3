"""docs/examples/readings.ipynb leads from a raw file to proven tables, and compares each step with the truth itself.

`make notebook` runs all of it, as Jupyter does. With `ARGS=--rewrite` it keeps what the cells show; look at the
difference.
"""

import importlib
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "readings.ipynb"
SPARK = "A table in Spark"
"""The heading from which on the cells need Java, and most of the time."""

pytestmark = [pytest.mark.serial, pytest.mark.timeout(300)]


def shown(page: Any) -> list[Any]:
    """What the cells show as text."""
    return [
        output.get("text") or output.get("data", {}).get("text/plain")
        for cell in page["cells"]
        for output in cell.get("outputs", [])
    ]


def test_the_cells_before_spark_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the raw file through the import to SQL and Arrow, each row as the generator made it."""
    monkeypatch.syspath_prepend(PAGE.parent)
    names: dict[str, Any] = {}
    try:
        for cell in json.loads(PAGE.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if SPARK in source:
                break
            if cell["cell_type"] == "code":
                exec(compile(source, PAGE.name, "exec"), names)  # noqa: S102  # the notebook itself
    finally:
        names["cluster"].remove()
    assert len(names["appended"]) == len(names["truth"].rows)


@pytest.mark.spark
@pytest.mark.long
def test_the_notebook_runs_in_a_kernel(java_home: Path, request: pytest.FixtureRequest) -> None:
    """Every cell, in a kernel of its own with Spark; what the cells show is what the notebook holds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that only this test uses
        nbclient, nbformat = map(importlib.import_module, ("nbclient", "nbformat"))
        page = nbformat.read(PAGE, 4)
        held = shown(page)
        nbclient.NotebookClient(page, timeout=240, resources={"metadata": {"path": str(PAGE.parent)}}).execute()
    for cell in page.cells:
        cell.metadata.pop("execution", None)  # the times of this run
    if request.config.getoption("--rewrite"):
        nbformat.write(page, PAGE)
    else:
        assert shown(page) == held
