"""Loads docs/examples/readings.py, the generator with known truth."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "readings.py"
DDL = "Measured STRING, Station STRING, Level DOUBLE, Remark STRING"


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("readings", PAGE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["readings"] = module
    spec.loader.exec_module(module)
    return module


readings: Any = _load()
