"""A PostgreSQL server for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.cluster.importer.postgres.postgres_server import PostgresNotFoundError, PostgresServer
from tests.support import free_ports, served


@pytest.fixture(scope="package")
def postgres() -> Iterator[PostgresServer]:
    """A running server; skips without PostgreSQL."""
    with served(lambda: PostgresServer(free_ports(1)[0], {"fsync": "off"}), PostgresNotFoundError) as server:
        yield server
