"""The consensus links of a world: each message with the hello of its process, as an object or as bytes.

The receiver checks the hello of a process once, as cluster/peers/accepted.py does for each connection. In some worlds
messages are bytes: they go through the production's frames, and are damaged now and then. The CRC must detect that.
"""

from __future__ import annotations

from typing import Final

from raftlog.chaos.sim.ground.failure import Failure
from raftlog.chaos.sim.invariants.peers.bounded_sending import BoundedSending
from raftlog.chaos.sim.network.cluster import Cluster
from raftlog.chaos.sim.network.dials import Dials
from raftlog.chaos.sim.replica.hello import Hello
from raftlog.raft.codec.checks import Corrupt
from raftlog.raft.codec.frame import FrameDecoder
from raftlog.raft.codec.message import decode_message, encode_message
from raftlog.raft.messages import AppendEntries, AppendEntriesReply, Message, is_promise
from raftlog.raft.types import NodeId

FREQUENT: Final = (AppendEntries, AppendEntriesReply)


Parcel = tuple[int, NodeId, NodeId, int, Hello, Message | bytes]
"""Number of the message, sender, addressee and the number of its process (`Dials.face`), the sender's hello, the
message."""


class Wires:
    """Sends and delivers; `raftlog.chaos.sim.network.network` says when, how often and whether at all."""

    def __init__(self, world: Cluster, dials: Dials) -> None:
        self.world, self._dials = world, dials
        self._number = 0
        self._bounded = BoundedSending(world.swarm.options.heartbeat_ms)

    def send(self, message: Message) -> None:
        world, sender, to = self.world, message.sender, message.to
        if not self._dials.is_refused(sender, to):
            world.witness.sends(message, world.disks[sender])
        self._bounded.sends(message, world.now_us)
        self._number = number = self._number + 1
        world.trace.sent(number, world.now_us, message)
        carried: Message | bytes = encode_message(message) if world.swarm.encode else message
        parcel = (number, sender, to, self._dials.face(to), world.replicas[sender].hello, carried)
        if self._dials.is_down(sender, to):
            world.network.lost += 1
            world.trace.lost(number, world.now_us, "not connected")
        elif not world.network.send(sender, to, parcel, is_rare=not isinstance(message, FREQUENT)):
            world.trace.lost(number, world.now_us, "on the way")

    def carry(self, delay_us: int, parcel: Parcel) -> None:
        self.world.after(delay_us, self._deliver, *parcel)

    def _deliver(
        self, number: int, sender: NodeId, to: NodeId, face: int, hello: Hello, carried: Message | bytes
    ) -> None:
        world = self.world
        replica = world.replicas[to]
        if face != self._dials.face(to):
            world.network.lost += 1
            world.trace.lost(number, world.now_us, "another process is reached")
        elif world.network.is_cut(sender, to):
            world.network.lost += 1
            world.trace.lost(number, world.now_us, "cut")
        elif replica.core is None:
            world.trace.lost(number, world.now_us, "down")
        elif replica.hellos.greeted.get(sender) != hello and not replica.greet(sender, hello):
            world.trace.lost(number, world.now_us, "refused")
        else:
            world.trace.delivered(number, world.now_us)
            message = self._decoded(carried) if isinstance(carried, bytes) else carried
            is_proved = replica.hellos.believed.get(sender) == hello
            if message is not None and (is_proved or not is_promise(message)):
                if world.replicas[sender].hello == hello:  # not what a process said that has ended since
                    world.witness.delivered(message)
                replica.deliver(hello.incarnation, message)

    def _decoded(self, data: bytes) -> Message | None:
        """Bytes on a link: one frame in a few hundred is damaged on the way, and must be refused for it."""
        world = self.world
        random = world.network_random
        if not world.is_healed and random.getrandbits(9) == 0:
            damaged = bytearray(data)
            damaged[random.randrange(8, len(data))] ^= 1 << random.getrandbits(3)  # the length: the decoder waits
            try:
                frames = FrameDecoder().feed(bytes(damaged))
            except Corrupt:
                world.count("damaged frames refused")
                return None
            raise Failure("damaged bytes on a link are refused", (data, damaged, frames))
        (frame,) = FrameDecoder().feed(data)
        return decode_message(frame)
