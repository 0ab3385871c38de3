"""Makes the workloads that a scenario names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from raftlog.chaos.deploy.deployment import Deployment
from raftlog.chaos.workloads.bank import Bank
from raftlog.chaos.workloads.direct import DirectLog, DirectStore
from raftlog.chaos.workloads.lists import Lists
from raftlog.chaos.workloads.log import Appends
from raftlog.chaos.workloads.register import Registers
from raftlog.chaos.workloads.set import Sets
from raftlog.chaos.workloads.sink import PREFIX, SinkCopies
from raftlog.chaos.workloads.tracer import Tracer
from raftlog.chaos.workloads.workload import Arena, Recorder, Workload

_MAKERS: Final[dict[str, Callable[[Arena, Recorder], Workload]]] = {
    "register": Registers,
    "set": Sets,
    "bank": Bank,
    "lists": Lists,
}


def make_workload(name: str, arena: Arena, tracer: Tracer, deployment: Deployment) -> Workload:
    """The workload of that name; those that ask directly share the connections and the truth of the tracer."""
    recorder = Recorder(arena)
    match name:
        case "direct":
            return DirectLog(arena, recorder, tracer=tracer)
        case "direct-keys":
            nodes = sorted(tracer.urls)
            stores = [(DirectStore(tracer.urls[node], tracer.direct), node) for node in nodes]
            return Registers(
                arena, recorder, name, processes=len(nodes), prefix="d/", open=lambda number: stores[number]
            )
        case "log":
            return Appends(arena, recorder, oldest=lambda: tracer.oldest)
        case "sink":
            return SinkCopies(arena, recorder, sink=deployment.make_sink(PREFIX))
    return _MAKERS[name](arena, recorder)
