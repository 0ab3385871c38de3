"""The values of answers, as their readers want them."""

import pytest

from raftlog import Client, Record, WatchEvent
from tests.cluster.fake_node import serve


async def test_a_value_is_read_as_json_where_it_is_used() -> None:
    """Of a key, a record and a change; by any function. A log that has other values too is read all the same."""
    async with serve() as served, Client(served.url) as client:
        await client.append(b"no JSON")
        written = await client.put(b"user", b'{"name": "Ada"}')
        item = await client.get(b"user")
        assert item is not None
        assert (item.json(), item.json(bytes.upper)) == ({"name": "Ada"}, b'{"NAME": "ADA"}')
        await client.delete(b"user")
        records = [each async for each in client.log() if isinstance(each, Record)]
        told, put, deleted = (each for each in records if each.operation in ("append", "put", "delete"))
        assert (put.json(), deleted.json()) == ({"name": "Ada"}, None)
        with pytest.raises(ValueError, match="JSON"):
            told.json()
        async for event in client.watch(from_index=written.index):
            assert isinstance(event, WatchEvent)
            assert event.changes[0].json() == {"name": "Ada"}
            break
