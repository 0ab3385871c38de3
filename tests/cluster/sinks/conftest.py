"""The nodes and the client that the tests of imports use."""

from tests.cluster.importer.conftest import client, local, node

__all__ = ["client", "local", "node"]
