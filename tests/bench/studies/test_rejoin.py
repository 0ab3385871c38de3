"""Tests the verdicts on a node that comes back, from its measurements."""

import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from bench.instruments.conditions import Conditions
from bench.instruments.machine import Disk
from bench.loads import phases
from bench.loads.openloop import Each, Offered
from bench.studies import rejoin

SEEN = Conditions(Disk("ext4", 100, 100.0, 200.0), 0.0)


def offered(per_second: float = 3_000.0, p99_ms: float = 20.0, bad: int = 0) -> Offered:
    return Offered(3_000, 64, 30_000, 30_000, bad, per_second, 5.0, p99_ms, 50.0, 60.0)


CALM = rejoin.Window(False, offered())
REJOIN = rejoin.Result("", SEEN, 1_000, 256, [5.0], [6.0], [CALM, rejoin.Window(True, offered())])


def test_a_run_in_which_all_holds_passes() -> None:
    """The rate holds."""
    assert REJOIN.faults == []


@pytest.mark.parametrize(
    ("window", "says"),
    [
        (offered(per_second=2_690.0), "89.7% of the offered rate"),
        (offered(p99_ms=40.1), "p99 40.1 ms, 2.0 times"),
        (offered(bad=2), "4 writes failed"),
    ],
)
def test_each_fault_of_a_rejoin_is_named(window: Offered, says: str) -> None:
    """Of rates the least counts, of each kind's p99 the median."""
    windows = [CALM, rejoin.Window(True, offered()), *[rejoin.Window(True, window)] * 2]
    (fault,) = msgspec.structs.replace(REJOIN, windows=windows).faults
    assert fault.startswith(says)


def _each(began: float, *requests: tuple[float, float]) -> Each:
    return Each(offered(), began, [due for due, _ in requests], [latency for _, latency in requests])


def test_every_write_counts_in_the_phase_in_which_it_was_due() -> None:
    """The bench's own steps and the node's log lines begin phases. Peers that connect once more begin none. A ready
    node still fetches older segments until it reports that it has them.
    """
    own = [phases.Moment(10.0, rejoin.DOWN), phases.Moment(12.0, rejoin.STARTING), phases.Moment(15.0, rejoin.CALM)]
    logged = [
        phases.Moment(13.0, rejoin.LOG), phases.Moment(14.0, rejoin.BACKFILL), phases.Moment(14.5, rejoin.LOG),
        phases.Moment(16.0, rejoin.CALM), phases.Moment(17.0, rejoin.LOG),
    ]  # fmt: skip
    run = _each(9.0, (0.5, 1.0), (1.5, 2.0), (3.5, 3.0), (4.5, 4.0), (5.2, 5.0), (5.8, 6.0), (6.5, 7.0), (7.5, 8.0))
    seen = {each.name: (each.requests, each.max_ms) for each in rejoin.phases_of([run], own, logged)}
    assert seen == {
        rejoin.CALM: (3, 8.0), rejoin.DOWN: (1, 2.0), rejoin.STARTING: (1, 3.0), rejoin.LOG: (1, 4.0),
        rejoin.BACKFILL: (2, 6.0),
    }  # fmt: skip


def test_moments_are_read_from_a_nodes_log(tmp_path: Path) -> None:
    """Lines of other events, and lines of other programs, are ignored; times are those of the load."""
    log = tmp_path / "node.log"
    at = datetime.now(UTC)
    log.write_text(
        f'Traceback\n{{"event":"started","timestamp":"{at.isoformat()}"}}\n'
        f'{{"event":"backfill_done","timestamp":"{at.isoformat()}"}}\n'
    )
    (moment,) = phases.moments_of(log, rejoin.phase_of)
    assert moment.phase == rejoin.CALM
    assert abs(moment.at - time.monotonic()) < 60.0
