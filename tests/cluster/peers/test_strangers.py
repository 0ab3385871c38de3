"""Nodes that the configuration does not name, or not with that disk: which are dialled back, and what they hear."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import pytest

from raftlog.cluster.peers.hello import encode_hello
from raftlog.raft.codec.frame import FRAME_DISK, FRAME_READ, encode_frame
from raftlog.raft.codec.message import encode_message
from tests.cluster.peers.test_forged_hello import FOREIGN, silent, spoken, welcoming
from tests.cluster.peers.test_transport import Ear, a_transport, configuration_of, hello_of, transports, vote
from tests.support import free_ports, streams_served, wait_until_async


@pytest.mark.usefixtures("known_challenge")
async def test_a_member_whose_hello_names_an_old_address_is_dialled_where_the_configuration_says() -> None:
    """A member moved while it was down, so its first hello names its old address. No process listens there, and for
    a moment none at the new address. So both are dialled in turn until one answers.

    Before, a peer dialled the old address for as long as that connection was open, or closed the link to the new one.
    """
    old, new = free_ports(2)
    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)):
        now = configuration_of([port, new])
        one.set_members(now)
        async with spoken(port, encode_hello(hello_of(at=f"127.0.0.1:{old}"))):
            for _ in range(2):
                await wait_until_async(lambda: 2 in one.strangers, what="no process listens at the new address")
                one.set_members(now, tuple(one.strangers.values()))
                await wait_until_async(lambda: not one.strangers, what="no process listens at the old address")
                one.set_members(now)
            await wait_until_async(lambda: 2 in one.strangers, what="no process listens at the new address")
            async with streams_served(silent, new):
                link = one.link_to(2)
                assert link is not None
                await wait_until_async(lambda: link.is_up, what="it listens at the new address")
                assert not one.strangers
                await wait_until_async(lambda: [peer for peer, _, _ in ear.opened] == [2])


async def test_a_member_is_reached_where_it_is_until_it_moves() -> None:
    """A configuration in force names another address of a member that has not moved. The connection stays. When it
    breaks, the old address is dialled as well, until the member answers at the new one.

    Before, the leader closed it. With no other follower the change could not be committed, nor a leader be elected.
    """
    (old, new), there = free_ports(2), Ear()

    @asynccontextmanager
    async def listening_at(place: int) -> AsyncIterator[None]:
        two = a_transport(2, there)
        try:
            await two.start("127.0.0.1", place)
            two.set_members(configuration_of([port, place]))
            yield
        finally:
            await two.close()

    async with transports(1, listening=[1]) as ((one,), _, (port,)):
        one.set_members(configuration_of([port, old]))
        async with listening_at(old):
            await wait_until_async(lambda: len(there.opened) == 1 and one.is_bulk_up(2), what="the links")
            links = one.links_to(2)
            one.set_members(configuration_of([port, new]))
            assert one.links_to(2) == links
            assert all(link.is_up for link in links)
            for link in links:
                link.redial()
            await wait_until_async(lambda: len(there.opened) == 2 and one.is_bulk_up(2), what="the old address")
        async with listening_at(new):
            await wait_until_async(lambda: len(there.opened) == 3, what="the new address")
            await wait_until_async(lambda: not any(link.is_moving for link in links), what="its word that it believes")
            assert [link.address for link in links] == [f"127.0.0.1:{new}"] * 2


@pytest.mark.usefixtures("known_challenge")
async def test_the_end_of_an_old_disk_does_not_end_its_successor() -> None:
    """A node was replaced by itself with another disk. The process of the old disk ends late: the new one stays the
    process that this node knows under the number."""
    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)), streams_served(silent) as other:
        before = configuration_of([port, other])
        one.set_members(before)
        disk = replace(before.members[1], incarnation=FOREIGN)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(spoken(port, encode_hello(hello_of())))
            await wait_until_async(lambda: len(ear.opened) == 1)
            one.set_members(replace(before, members=(before.members[0], disk)))
            async with spoken(port, encode_hello(hello_of(incarnation=FOREIGN))):
                await wait_until_async(lambda: len(ear.opened) == 2)
                await stack.aclose()
                await wait_until_async(lambda: len(one.incoming.current) == 1)
                assert ear.closed == []
                assert [disk for _, disk, _ in ear.opened][-1] == FOREIGN
            await wait_until_async(lambda: ear.closed == [2])


@pytest.mark.usefixtures("known_challenge")
async def test_a_node_outside_the_configuration_is_believed_once_it_is_dialled_back() -> None:
    """It names its own address. The replica has it dialled; the listener there confirms its hello, as a member's does.
    An address that is none is not kept."""
    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)), streams_served(welcoming) as other:
        one.set_members(configuration_of([port]))
        async with spoken(port, encode_hello(hello_of(at=f"127.0.0.1:{other}")), encode_message(vote())):
            await wait_until_async(lambda: 2 in one.strangers)
            assert (ear.opened, ear.messages) == ([], [])
            one.set_members(configuration_of([port]), tuple(one.strangers.values()))
            await wait_until_async(lambda: [peer for peer, _, _ in ear.opened] == [2])
        await wait_until_async(lambda: not one.strangers)
        async with spoken(port, encode_hello(hello_of(at="nowhere"))):
            await wait_until_async(lambda: len(one.incoming.open) == 1)
            assert not one.strangers


@pytest.mark.usefixtures("known_challenge")
async def test_a_believed_node_outside_the_configuration_stays_dialled_when_it_dials_again() -> None:
    """A leader that the configuration here does not name is dialled back, and its hello is believed. It dials again.

    Before, the second connection was believed at once and the end of the first one ended the link back to the leader,
    so the leader got no answer until it closed the silent link. The simulator showed it.
    """
    async with transports(1, listening=[1]) as ((one,), (ear,), (port,)), streams_served(welcoming) as other:
        one.set_members(configuration_of([port]))
        hello = encode_hello(hello_of(at=f"127.0.0.1:{other}"))
        async with AsyncExitStack() as first:
            await first.enter_async_context(spoken(port, hello))
            await wait_until_async(lambda: 2 in one.strangers)
            one.set_members(configuration_of([port]), tuple(one.strangers.values()))
            await wait_until_async(lambda: len(ear.opened) == 1)
            async with spoken(port, hello):
                await wait_until_async(lambda: len(ear.opened) == 2)
                await first.aclose()
                await wait_until_async(lambda: len(one.incoming.open) == 1)
                assert [each.node for each in one.strangers.values()] == [2]
        await wait_until_async(lambda: not one.strangers)


def test_a_node_hears_when_a_peer_believes_its_bulk_link() -> None:
    """A node has another disk at its old address. A peer that has not heard of it takes its requests and drops its
    reports, on a link that stays when the peer hears of it."""

    async def story() -> None:
        async with transports(2) as ((one, two), (ear, other), ports):
            await wait_until_async(lambda: other.bulk_believed == [1], what="a believed link")
            now = configuration_of(ports)
            one.set_members(replace(now, members=(now.members[0], replace(now.members[1], incarnation=FOREIGN))))
            for link in two.links_to(1):
                link.redial()
            await wait_until_async(lambda: other.bulk_closed == [1] and two.is_bulk_up(1), what="a new link")
            await wait_until_async(lambda: two.has_dialled(1), what="a link of the peer, which takes reports")
            for kind in (FRAME_DISK, FRAME_READ):
                two.send_bulk(1, encode_frame(kind, [1]))
            two.flush()
            await wait_until_async(lambda: bool(ear.frames), what="the request")
            assert [frame.kind for frame in ear.frames] == [FRAME_READ]
            one.set_members(now)
            await wait_until_async(lambda: other.bulk_believed == [1, 1], 2, what="the word")
            assert other.bulk_opened == [1, 1]
            two.send_bulk(1, encode_frame(FRAME_DISK, [1]))
            two.flush()
            await wait_until_async(lambda: ear.frames[-1].kind == FRAME_DISK, what="the report")

    asyncio.run(story())
