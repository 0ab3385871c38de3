"""Handles `/` and `/console/{file}`: the console for browsers, the list of routes for programs."""

from __future__ import annotations

from functools import cache
from typing import Final

from raftlog.cluster.admission.access import Need
from raftlog.cluster.api.errors import ApiError, Code
from raftlog.cluster.console.files import POLICY, ConsoleFile, console_files
from raftlog.cluster.http.exchange.answer import HttpAnswer
from raftlog.cluster.http.exchange.call import Call
from raftlog.cluster.http.exchange.service import Service
from raftlog.cluster.http.routes.operator import VERSION, routes_answer

PATH: Final = "/console/"
_INDEX: Final = "index.html"
_files = cache(console_files)  # read and compressed once, for the first browser


async def get_start(service: Service, call: Call) -> HttpAnswer:
    """For a browser, the console; for a program, the routes, and for a known user which node of which log this is."""
    if service.settings.http.console and "text/html" in call.headers.get("Accept", ""):
        return _answer(service, call, _files()[_INDEX])
    try:
        service.access.admit(call, Need.PRINCIPAL, 0, is_read=True, is_first_admin=False, is_passed_on=False)
    except ApiError:
        return routes_answer(service, "raftlog")
    return routes_answer(service, f"raftlog {VERSION}, node {service.node.node_id}, log {service.node.log_id}")


async def get_file(service: Service, call: Call) -> HttpAnswer:
    """One file of the console. The files hold nothing of the cluster: their scripts ask the routes for it."""
    call.query()
    name = call.path.removeprefix(PATH) or _INDEX
    found = _files().get(name) if service.settings.http.console else None
    if found is None:
        raise ApiError(Code.NOT_FOUND, f"the console has no file {name[:100]!r}; it begins at /")
    return _answer(service, call, found)


def _answer(service: Service, call: Call, file: ConsoleFile) -> HttpAnswer:
    body, status = (b"", 304) if call.headers.get("If-None-Match") == file.tag else (file.body, 200)
    return service.bare(body, file.kind, status, (("ETag", file.tag), *POLICY))
