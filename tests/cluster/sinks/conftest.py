"""The node and the client that the tests of imports use."""

from tests.cluster.importer.conftest import client, node

__all__ = ["client", "node"]
