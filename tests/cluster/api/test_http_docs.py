"""docs/http_api.md and openapi.yaml say what the server does: routes, limits, error codes."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from raftlog.cluster.api.errors import DECIDED, ERRORS, Code, ErrorRow, Outcome
from raftlog.cluster.config.settings import Settings
from raftlog.cluster.http.routes.operator import OPENAPI
from raftlog.cluster.http.routes.table import ROUTES
from raftlog.statemachine.commands import KEY_BYTES_MAX

ROOT = Path(__file__).parent.parent.parent.parent
PAGE = (ROOT / "docs" / "http_api.md").read_text(encoding="utf-8")


def table(heading: str, page: str = PAGE) -> list[list[str]]:
    """The cells of the table under a heading, without its head."""
    section = page.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_table_of_errors_is_that_of_the_code() -> None:
    """Every code once, in order, with its status, outcome and retryable, and a word on when."""
    told = {
        Code(code): ErrorRow(int(status), Outcome(outcome.rstrip("*")), retryable == "yes")
        for code, status, outcome, retryable, when in table("Error codes")
        if when
    }
    assert list(told.items()) == list(ERRORS.items())
    assert {code for code, _, outcome, *_ in table("Error codes") if outcome.endswith("*")} == DECIDED


def test_table_of_limits_has_the_defaults() -> None:
    """Every named limit exists and has that default; every limit of the HTTP layer is there or among the resources."""
    settings = Settings()
    told = {name: int(value) for name, value, _ in table("Limits")}
    assert told.pop("key") == KEY_BYTES_MAX
    for name, value in told.items():
        section, _, key = name.partition(".")
        assert getattr(getattr(settings, section), key) == value, name
    source = "".join(path.read_text("utf-8") for path in (ROOT / "cluster" / "http").rglob("*.py"))
    used = {f"limits.{name}" for name in re.findall(r"limits\.(\w+(?:_max|_ms))\b", source)}
    used -= {"limits.stop_timeout_ms", "limits.request_lines_max", "limits.txn_operations_max"}
    page = (ROOT / "docs/operations/limits.md").read_text("utf-8")
    resources = {row[1] for row in table("Limits on resources", f"\n#{page}")}
    assert used <= told.keys() | resources, used - told.keys() - resources


def test_every_route_is_described() -> None:
    """openapi.yaml has exactly the server's routes, and the page names every one of them."""
    document = yaml.safe_load(OPENAPI)
    described = {
        (method.upper(), pattern)
        for pattern, methods in document["paths"].items()
        for method in methods.keys() - {"parameters"}
    }
    assert described == {(route.method, route.pattern) for route in ROUTES}
    for route in ROUTES:
        fixed = route.pattern.partition("{")[0].rstrip("/") or "/"
        assert fixed in PAGE, route.pattern


def test_examples_use_only_known_routes_and_parameters() -> None:
    """Each URL of a curl example is one that openapi.yaml knows, with parameters that it knows."""
    paths = yaml.safe_load(OPENAPI)["paths"]
    known = {"follow", "key", "key_b64", "prefix_b64"}
    for methods in paths.values():
        for operation in [methods, *(value for name, value in methods.items() if name != "parameters")]:
            for parameter in operation.get("parameters", ()) if isinstance(operation, dict) else ():
                name = parameter.get("name") or parameter["$ref"].rpartition("/")[2]
                known.add({"MinIndex": "min_index", "IfRevision": "if_revision"}.get(name, name.lower()))
    for path, query in re.findall(r"\$NODE(/[^\s\"'?]*)\??([^\s\"']*)", PAGE):
        assert any(re.fullmatch(re.sub(r"\{\w+\}", ".+", pattern), path) for pattern in paths), path
        names = {pair.partition("=")[0] for pair in query.split("&") if pair}
        assert names <= known, (path, names - known)
