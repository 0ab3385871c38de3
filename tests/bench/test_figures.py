"""The arithmetic of the bench: medians of the rounds' ratios, and when a ratio is not quoted."""

import msgspec

from bench.instruments.figures import OTHERS_MAX, Figure, Run, compare, ratio, run_of


def figure(name: str, rates: list[float], p99_ms: float = 5.0, count: int = 64, load: str = "write") -> Figure:
    """One contender's rounds."""
    return Figure(name, load, count, [Run(count, 100, rate, 0, 1.0, p99_ms, 9.0) for rate in rates], 10.0, 100.0)


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """Round by round, not total by total: a round that the machine spoilt for both does not count double."""
    found = ratio(figure("raftlog", [200, 300, 90], 2.0), figure("etcd", [100, 100, 10], 8.0))
    assert found is not None
    assert (found.throughput, found.lowest, found.highest, found.p99) == (3.0, 2.0, 9.0, 0.25)


def test_rounds_that_disagree_make_a_ratio_noisy() -> None:
    """Two to nine times says nothing; two to three does. So does anybody else on the machine."""
    noisy = ratio(figure("raftlog", [200, 300, 90]), figure("etcd", [100, 100, 10]))
    steady = ratio(figure("raftlog", [200, 210, 220]), figure("etcd", [100, 100, 100]))
    assert noisy is not None
    assert steady is not None
    assert noisy.is_noisy
    assert not steady.is_noisy
    assert msgspec.structs.replace(steady, others=OTHERS_MAX + 0.01).is_noisy


def test_a_round_that_did_nothing_makes_no_ratio() -> None:
    """A peer that stood still is no peer to be proud of, and nothing is divided by zero."""
    assert ratio(figure("raftlog", [200, 200]), figure("etcd", [100, 0])) is None
    assert ratio(figure("raftlog", []), figure("etcd", [])) is None


def test_only_the_same_load_at_the_same_connections_is_compared() -> None:
    """Ours beside others, never beside ourselves."""
    figures = [
        figure("raftlog", [2.0]),
        figure("raftlog, aiohttp", [1.0]),
        figure("etcd", [1.0]),
        figure("etcd", [1.0], count=1),
        figure("etcd", [1.0], load="read"),
    ]
    found = compare(figures, ["raftlog", "raftlog, aiohttp"])
    assert [(each.ours, each.peer, each.throughput) for each in found] == [
        ("raftlog", "etcd", 2.0),
        ("raftlog, aiohttp", "etcd", 1.0),
    ]


def test_records_per_request_scale_a_rate() -> None:
    """A batch of 100 counts as 100 records, on both sides of a ratio."""
    batches = msgspec.structs.replace(figure("raftlog", [10.0]), scale=100.0)
    found = ratio(batches, figure("etcd", [500.0]))
    assert batches.per_second == 1_000
    assert found is not None
    assert found.throughput == 2.0


def test_percentiles_come_from_the_sorted_latencies() -> None:
    """Of 1,000 latencies of 0 to 999 ms, and of none."""
    run = run_of(4, 2.0, [float(n) for n in reversed(range(1_000))])
    assert (run.requests, run.per_second, run.p50_ms, run.p99_ms, run.p999_ms) == (1_000, 500.0, 500.0, 990.0, 999.0)
    assert run_of(4, 2.0, []).p99_ms == 0.0
