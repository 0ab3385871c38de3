"""Judges the goals of docs/performance.md on the figures of one run: met, missed, or why neither can be said."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from bench.comparison.axes import BULK, CLIENT, COMMIT, READ, SECURE_READ, SECURE_WRITE, STREAM, TASKS, WRITE
from bench.contenders.raftlog import NAME, PLAIN, SECURE
from bench.instruments.figures import OTHERS_MAX, Figure, ratio
from bench.loads.followers import Delivery

P99_DELIVERY_MS = 250
BAD_MAX = 0.01
"""Highest share of answers that were no success in a figure that is judged: a server that refuses is fast."""


class Goal(msgspec.Struct, frozen=True):
    """One goal; `is_met` is None where this run cannot say, and `note` then why."""

    what: str
    wanted: str
    measured: float | None = None
    is_met: bool | None = None
    note: str = ""


class Judge:
    """Figures, and the questions that goals ask of them."""

    def __init__(self, figures: Sequence[Figure], *, unfit: str) -> None:
        """`unfit`: why this run cannot judge any goal, or ""."""
        self._by = {(figure.load, figure.connections, figure.contender): figure for figure in figures}
        self._unfit = unfit
        self.goals: list[Goal] = []

    def _said(self, what: str, wanted: str, measured: float, is_met: bool, others: float) -> None:
        unfit = self._unfit or ("the machine was busy" if others > OTHERS_MAX else "")
        if unfit:
            self.goals.append(Goal(what, wanted, None, None, unfit))
        else:
            self.goals.append(Goal(what, wanted, round(measured, 3), is_met))

    def absolute(self, what: str, load: str, count: int, names: Sequence[str], least: float, unit: str) -> None:
        """The best of these contenders reaches so many units a second."""
        found = [figure for name in names if (figure := self._by.get((load, count, name))) is not None]
        wanted = f"≥ {least:,g} {unit}"
        if not found:
            self.goals.append(Goal(what, wanted, note="not measured in this run"))
            return
        best = max(found, key=lambda figure: figure.per_second)
        if not self._refuses(what, wanted, best):
            self._said(what, wanted, best.per_second, best.per_second >= least, best.others)

    def _refuses(self, what: str, wanted: str, figure: Figure) -> bool:
        """Whether that figure counts too many failures to judge the goal by it, and says so."""
        answers = sum(run.requests for run in figure.runs)
        if figure.bad > BAD_MAX * answers:
            note = f"{figure.bad:,} of {answers:,} answers were no success"
            self.goals.append(Goal(what, wanted, note=note))
            return True
        return False

    def beside(
        self,
        what: str,
        load: str,
        count: int,
        names: Sequence[str],
        peers: Callable[[str], bool],
        least: float,
        *,
        p99_most: float = 0.0,
    ) -> None:
        """The best of these contenders, over the fastest of the peers (or by p99 against the peer's best)."""
        wanted = f"p99 ≤ {p99_most:.2g}×" if p99_most else f"≥ {least:g}×"
        ours = [figure for name in names if (figure := self._by.get((load, count, name))) is not None]
        best = max(ours, key=lambda figure: figure.per_second, default=None)
        if best is not None and self._refuses(what, wanted, best):
            return
        others = [
            figure for (at, number, name), figure in self._by.items() if (at, number) == (load, count) and peers(name)
        ]
        pairs = [found for peer in others if best is not None and (found := ratio(best, peer)) is not None]
        if not pairs:
            self.goals.append(Goal(what, wanted, note="not measured in this run"))
            return
        hardest = max(pairs, key=lambda pair: pair.p99) if p99_most else min(pairs, key=lambda pair: pair.throughput)
        if hardest.is_noisy:
            self.goals.append(Goal(what, wanted, note=f"noisy: {hardest.lowest:.2f} to {hardest.highest:.2f}"))
        elif p99_most:
            self._said(what, wanted, hardest.p99, hardest.p99 <= p99_most, hardest.others)
        else:
            self._said(what, wanted, hardest.throughput, hardest.throughput >= least, hardest.others)


def is_gateway(name: str) -> bool:
    """etcd, either version, through its JSON gateway."""
    return name.startswith("etcd") and name.endswith("gateway")


def is_grpc(name: str) -> bool:
    """etcd, either version, through gRPC."""
    return name.startswith("etcd") and "gRPC" in name


def _is_newer_grpc(name: str) -> bool:
    return is_grpc(name) and not name.startswith("etcd 3.4")


def _is_nats(name: str) -> bool:
    return "NATS" in name


def _is_unsynced_nats(name: str) -> bool:
    return _is_nats(name) and "sync always" not in name


def judge(figures: Sequence[Figure], delivery: Delivery | None, *, unfit: str, growth: str = "") -> list[Goal]:
    """Every goal of the table, in its order. `unfit`: why none can be judged, or "".

    `growth`: the short result of that study.
    """
    court = Judge(figures, unfit=unfit)
    for count in (64, 256):
        court.beside(
            f"single write, plain aiohttp, c={count}, beside etcd's gateway", WRITE, count, [PLAIN], is_gateway, 2
        )
        court.beside(
            f"single write, plain aiohttp, c={count}, of its no-op floor",
            WRITE,
            count,
            [PLAIN],
            lambda name: name == "no-op, plain aiohttp",
            0.6,
        )
    court.beside("single write, c=64, beside etcd's gateway", WRITE, 64, [NAME], is_gateway, 5)
    court.beside("single write, c=64, beside etcd gRPC", WRITE, 64, [NAME], is_grpc, 2.5)
    court.beside("single write, c=64, p99 beside etcd's gateway", WRITE, 64, [NAME], is_gateway, 0, p99_most=1 / 3)
    forms = [f"{NAME} JSON", f"{NAME} msgpack"]
    for size, count in ((100, 4), (100, 16), (1_000, 4), (1_000, 16)):
        name = f"bulk append of {size}, c={count}"
        court.absolute(name, BULK.format(size), count, forms, 400_000, "records/s")
    for count in (4, 16):
        court.beside(f"bulk append of 100, c={count}, beside etcd gRPC", BULK.format(100), count, forms, is_grpc, 5)
    for count in (64, 256):
        court.beside(
            f"linearizable read, plain aiohttp, c={count}, beside the gateway", READ, count, [PLAIN], is_gateway, 2
        )
        court.beside(f"linearizable read, c={count}, beside the gateway", READ, count, [NAME], is_gateway, 5)
        court.beside(f"linearizable read, c={count}, beside etcd 3.7 gRPC", READ, count, [NAME], _is_newer_grpc, 2)
    court.beside("single write, secure, c=64, beside etcd gRPC", SECURE_WRITE, 64, [SECURE], is_grpc, 2.5)
    court.beside("linearizable read, secure, c=64, beside etcd 3.7 gRPC", SECURE_READ, 64, [SECURE], _is_newer_grpc, 2)
    court.absolute("log stream, raw", STREAM, 1, [f"{NAME} raw"], 800, "MB/s")
    court.absolute("log stream, JSON", STREAM, 1, [f"{NAME} JSON"], 200, "MB/s")
    court.beside("log stream, raw, beside NATS", STREAM, 1, [f"{NAME} raw"], _is_nats, 8)
    court.absolute("commits in process, 256 in flight", COMMIT, 256, [NAME], 200_000, "commits/s")
    court.beside("commits with fsync, 256 in flight, beside NATS without", COMMIT, 256, [NAME], _is_unsynced_nats, 1)
    court.absolute(f"client appends from {TASKS} tasks", CLIENT, TASKS, [f"{NAME} client"], 50_000, "ops/s")
    court.beside(f"client appends from {TASKS} tasks, beside nats-py", CLIENT, TASKS, [f"{NAME} client"], _is_nats, 2)
    court.goals += followers_goals(delivery, unfit=unfit)
    court.goals.append(
        Goal("fail-over: killed median ≤ 150 ms, silent ≤ 600 ms", "see what", note="raftlog chaos run failover")
    )
    court.goals.append(
        Goal("cost flat as work grows; restart ≤ 5 s", "see what", note=growth or "python -m bench growth --full")
    )
    return court.goals


def followers_goals(delivery: Delivery | None, *, unfit: str) -> list[Goal]:
    """Every record delivered is a goal in any run; the time is one only in a run that can judge it."""
    whole, soon = "followers: every record delivered", "followers: p99 of delivery"
    if delivery is None:
        return [Goal(name, "see what", note="not measured in this run") for name in (whole, soon)]
    goals = [Goal(whole, "0 missing", delivery.missing, not delivery.missing and not delivery.bad_writes)]
    wanted = f"≤ {P99_DELIVERY_MS} ms"
    if unfit:
        goals.append(Goal(soon, wanted, note=unfit))
    else:
        goals.append(Goal(soon, wanted, delivery.p99_ms, delivery.p99_ms <= P99_DELIVERY_MS))
    return goals
