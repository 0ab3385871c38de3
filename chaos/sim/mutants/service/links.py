"""Plants mutants of connections: a hello believed too early, a node that does not notice its rejection."""

from typing import Final

from raftlog.chaos.sim.mutants.mutant import Mutant

_STRANGERS: Final = "tests/cluster/peers/test_strangers.py::test_"

MUTANTS: Final = (
    Mutant(
        name="hello_believed_without_a_proof",
        pitfall=28,
        title="a connection counts as soon as its hello names a member's disk: any process can have its vote",
        source="this project: one forged hello removed a member",
        story="tests/cluster/peers/test_forged_hello.py::test_a_forged_hello_is_neither_believed_nor_remembered",
        target="raftlog.cluster.peers.hello_proof:Proofs.standing",
        old="if answer and answer == self.challenge(link):",
        new="if hello.version_max >= PROOF_VERSION:",
    ),
    Mutant(
        name="boot_remembered_without_a_proof",
        pitfall=28,
        title="a boot counter is remembered before its proof: a forged hello makes the real disk an old copy",
        source="this project: one forged hello removed a member",
        story="tests/cluster/peers/test_forged_hello.py::test_a_forged_hello_is_neither_believed_nor_remembered",
        target="raftlog.cluster.peers.accepted:Accepted._take_hello",
        old="self.hello, self.challenge = hello, hello.challenge",
        new=(
            "self.hello, self.challenge = hello, hello.challenge\n"
            "    owner.met[hello.sender, hello.incarnation] = Met(hello.boot)"
        ),
    ),
    Mutant(
        name="end_of_a_forged_connection_is_news",
        pitfall=28,
        title="the end of a connection that was never believed counts as the leader's: its followers ask for votes",
        source="this project: connections in the leader's name that close",
        story="tests/cluster/peers/test_forged_hello.py::test_the_end_of_a_connection_that_was_never_believed_is_no_news",
        target="raftlog.cluster.peers.transport:Transport.closed",
        old=(
            "if self.current.get(key := (hello.sender, hello.incarnation, hello.purpose)) is not accepted:\n"
            "        return\n"
            "    del self.current[key]"
        ),
        new=("key = (hello.sender, hello.incarnation, hello.purpose)\n    self.current.pop(key, None)"),
    ),
    Mutant(
        name="term_jumps_without_bound",
        pitfall=28,
        title="a message of the newest possible term is believed: no node can be elected above it, ever",
        source="this project, until a review found it",
        story="tests/raft/consensus/test_core.py::test_one_message_cannot_raise_the_term_beyond_all_elections",
        target="raftlog.raft.consensus.state:is_beyond",
        old="return max(terms) > state.term + TERM_JUMP_MAX",
        new="return False",
    ),
    Mutant(
        name="silent_connections_keep_members_out",
        pitfall=28,
        title="a node at its limit of peer connections refuses a member, though the other connections sent no hello",
        source="this project, until a review found it",
        story="tests/cluster/peers/test_accepted.py::test_connections_that_say_nothing_keep_no_member_out",
        target="raftlog.cluster.peers.transport:Transport.has_room",
        old="and unproved:",
        new="and False:",
    ),
    Mutant(
        name="ready_though_refused",
        pitfall=28,
        title="a node whose connections the leader refuses says that it is ready, because it still follows",
        source="this project: /readyz of a rejected node said 200",
        story="tests/cluster/peers/test_forged_hello.py::test_a_node_that_the_leader_refuses_is_not_ready",
        target="raftlog.cluster.replica.readiness:is_ready",
        old="\n        and not is_cut_off(replica)",
        new="",
    ),
    Mutant(
        name="unknown_leader_not_answered",
        pitfall=45,
        title="a node hears a leader that its configuration does not name, and cannot answer it: it stays behind",
        source="this project, until a review found it; etcd sends peers' URLs with each connection for this",
        story=(
            "tests/cluster/replica/parts/test_members.py::test_a_restarted_node_answers_a_leader_that_it_does_not_know"
        ),
        target="raftlog.cluster.replica.parts.members:_strangers",
        old="if not met:",
        new="if True:",
    ),
    Mutant(
        name="unknown_candidate_not_answered",
        pitfall=11,
        title="a voter does not dial back a candidate that its configuration does not name: its vote does not arrive",
        source="this project, until a seed showed it",
        story=(
            "tests/cluster/replica/parts/test_members.py::test_a_node_without_a_leader_dials_a_node_that_it_does_not_know"
        ),
        target="raftlog.cluster.replica.parts.members:_strangers",
        old="leader == NOBODY or ",
        new="",
    ),
    Mutant(
        name="belief_in_a_bulk_link_not_told",
        pitfall=72,
        title="a node does not hear that a peer believes its bulk link now: what the peer dropped before is lost",
        source="docs/decisions/0018",
        story=f"{_STRANGERS}a_node_hears_when_a_peer_believes_its_bulk_link",
        target="raftlog.cluster.peers.dialled:Link._told",
        old="self._owner.receiver.bulk_link_believed(self.node)",
        new="pass",
    ),
    Mutant(
        name="old_disk_ends_its_successor",
        pitfall=45,
        title="the end of an old disk's connection is taken for the end of the disk that replaced it under its number",
        source="this project, until a review found it",
        story=f"{_STRANGERS}the_end_of_an_old_disk_does_not_end_its_successor",
        target="raftlog.cluster.peers.transport:Transport.closed",
        old="if not named:",
        new="if True:",
    ),
    Mutant(
        name="believed_stranger_not_dialled",
        pitfall=45,
        title="a leader that the configuration does not name is dialled back only until its hello is believed",
        source="this project, until the simulator showed it",
        story=f"{_STRANGERS}a_believed_node_outside_the_configuration_stays_dialled_when_it_dials_again",
        target="raftlog.cluster.peers.transport:Transport.meet",
        old="accepted.standing is not Standing.WAITING",
        new="accepted.standing is Standing.HEARD",
    ),
    Mutant(
        name="refused_copy_not_dialled",
        pitfall=45,
        title="the peer that refuses an older copy finishes a pause between dials first: the copy votes meanwhile",
        source="this project, until a test that failed now and then showed it",
        story="tests/cluster/replica/upkeep/test_rolled_back.py::test_the_link_to_a_refused_copy_is_dialled_at_once",
        target="raftlog.cluster.peers.accepted:Accepted._refuse",
        old="self._owner.proofs.ask(hello)",
        new="pass",
    ),
    Mutant(
        name="old_address_dialled_for_ever",
        pitfall=45,
        title="a member that moved is dialled at the old address of its first hello as long as its connection is open",
        source="this project, until a test that failed now and then showed it",
        story=f"{_STRANGERS}a_member_whose_hello_names_an_old_address_is_dialled_where_the_configuration_says",
        target="raftlog.cluster.peers.transport:Transport._is_stranger",
        old="is_there is not bool(link.trouble)",
        new="True",
    ),
    Mutant(
        name="moving_member_cut_off",
        pitfall=45,
        title="a changed address closes the link to a member that has not moved, and a bare majority commits nothing",
        source="this project, until a test that failed now and then showed it",
        story=f"{_STRANGERS}a_member_is_reached_where_it_is_until_it_moves",
        target="raftlog.cluster.peers.transport:Transport.set_members",
        old="if disk == link.disk and link.is_up:",
        new="if False:",
    ),
    Mutant(
        name="moving_member_dialled_at_the_new_address_only",
        pitfall=45,
        title="the link to a member that has not moved breaks, and only its new address is dialled",
        source="this project",
        story=f"{_STRANGERS}a_member_is_reached_where_it_is_until_it_moves",
        target="raftlog.cluster.peers.dialled:Link.move",
        old="(place,) if place == self.address else (place, self.address)",
        new="(place,)",
    ),
    Mutant(
        name="redialled_link_reported_as_down",
        pitfall=45,
        title="a link that its node closed and dials again counts as down: a cut of one direction looks like two",
        source="this project, until a test that failed now and then showed it",
        story="tests/cluster/peers/test_links.py::test_a_link_that_is_dialled_again_is_not_reported_as_down",
        target="raftlog.cluster.peers.transport:Transport.links_seen",
        old="is_reached=link.is_reached",
        new="is_reached=link.is_up",
    ),
)
"""The simulator's wires carry no forged hellos, and one connection of each node: directed stories see these."""
