"""`bench postgres` measures whole copies, and refuses one that is not whole."""

from pathlib import Path

import pytest

from bench.studies import postgres
from raftlog.chaos.deploy.postgres_server import PostgresNotFoundError, binaries

pytestmark = [pytest.mark.serial, pytest.mark.long]


def test_both_get_all_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round has rates; fewer changes than were written are an error, not a rate."""
    try:
        binaries()
    except PostgresNotFoundError as error:
        pytest.skip(str(error))
    result = postgres.measure(tmp_path, 400, 2, nodes=1)
    assert (result.changes, len(result.rounds)) == (400, 2)
    assert all(each.recvlogical > 0 and each.raftlog > 0 and each.importer_us > 0 for each in result.rounds)
    assert postgres.Result(400, [postgres.Round(50_000, 19_999, 10)]).faults
    assert not postgres.Result(400, [postgres.Round(15_000, 15_001, 10)]).faults
    write = postgres.write
    monkeypatch.setattr(postgres, "write", lambda server, first, changes: write(server, first, changes - 200))
    with pytest.raises(RuntimeError, match="400 changes were to be copied, not 200"):
        postgres.measure(tmp_path / "second", 400, 1, nodes=1)
