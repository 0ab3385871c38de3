"""Tests consumer groups: owners that may move a position, allowed positions, and the groups after a snapshot."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given, strategies as st

from raftlog.statemachine.answers import Answer, Reason
from raftlog.statemachine.commands import (
    ConsumerGroup,
    Limits,
    MalformedCommand,
    Operation,
    RequestBlock,
    Result,
    UnknownCommand,
)
from raftlog.statemachine.consumers import (
    ConsumerAction,
    ConsumerCommand,
    decode_consumer,
    encode_consumer,
)
from raftlog.statemachine.machine import StateMachine
from tests.statemachine.driver import Driver, appends, request, snapshot_bytes

CLAIM, COMMIT, RESET, DELETE = ConsumerAction


def asked(
    action: int,
    name: bytes | None = b"g",
    *,
    generation: int = 0,
    next: int = 0,
    owner: bytes = b"",
    session: int = 0,
    sequence: int = 0,
) -> RequestBlock:
    """A request of one consumer command."""
    value = encode_consumer(ConsumerCommand(action, generation, next, owner))
    return request(Operation.CONSUMER, name, value, session=session, sequence=sequence, payload_hash=len(value))


def told(answer: Answer) -> tuple[Result, Reason | None]:
    """What became of it."""
    return answer.result, answer.reason


def claimed(driver: Driver, next: int = 0) -> ConsumerGroup:
    """The group after a claim that must succeed."""
    answer = driver.answer(asked(CLAIM, next=next))
    assert answer.result is Result.APPLIED
    assert answer.consumer is not None
    return answer.consumer


def read_up_to(driver: Driver, count: int) -> None:
    """So many records to read."""
    driver.entry(appends(count))


def test_a_claim_makes_a_group_and_every_further_one_fences_the_owner_before() -> None:
    """The generation is the claim's index, so it only grows; the position stays where it was."""
    driver = Driver()
    read_up_to(driver, 10)
    first = claimed(driver, next=4)
    assert first == ConsumerGroup(4, 11, b"", 1_000, 0)
    driver.clock_ms = 7
    answer = driver.answer(asked(CLAIM, next=1, owner=b"host-2"))
    assert answer.consumer == ConsumerGroup(4, 12, b"host-2", 1_007, 7)
    old = driver.answer(asked(COMMIT, generation=first.generation, next=5))
    assert told(old) == (Result.COMPARE_FAILED, None)
    assert old.consumer == answer.consumer
    new = driver.answer(asked(COMMIT, generation=12, next=6))
    assert new.consumer == ConsumerGroup(6, 12, b"host-2", 1_007, 7)
    assert driver.machine.consumers.get(b"g") == new.consumer


def test_a_new_group_without_a_position_begins_at_the_first_index() -> None:
    """A claim without a position."""
    assert claimed(Driver()).next == 1


def test_a_new_group_begins_at_the_oldest_index_of_a_trimmed_log() -> None:
    """Trimmed records cannot be read: a claim without a position begins at the first record that can."""
    driver = Driver()
    read_up_to(driver, 10)
    driver.trim(6)
    assert claimed(driver).next == 6


def test_a_position_goes_back_only_by_a_reset() -> None:
    """A commit behind is refused and changes nothing; equal and forward are taken, and so is a reset of the owner."""
    driver = Driver()
    read_up_to(driver, 10)
    generation = claimed(driver, next=5).generation
    back = driver.answer(asked(COMMIT, generation=generation, next=4))
    assert told(back) == (Result.REFUSED, Reason.POSITION_BACK)
    assert back.consumer is not None
    assert back.consumer.next == 5
    for action, position in ((COMMIT, 5), (COMMIT, 8), (RESET, 2), (COMMIT, 3)):
        answer = driver.answer(asked(action, generation=generation, next=position))
        assert answer.result is Result.APPLIED
        assert answer.consumer is not None
        assert answer.consumer[:2] == (position, generation)


def test_a_reset_without_a_generation_fences_the_owner() -> None:
    """Else the owner's next commit would undo it. It makes a group that is not there."""
    driver = Driver()
    read_up_to(driver, 10)
    generation = claimed(driver, next=9).generation
    answer = driver.answer(asked(RESET, next=2))
    assert answer.consumer is not None
    assert answer.consumer[:2] == (2, answer.last)
    assert driver.answer(asked(COMMIT, generation=generation, next=10)).result is Result.COMPARE_FAILED
    assert driver.answer(asked(RESET, b"new", next=3)).consumer is not None
    assert len(driver.machine.consumers) == 2


def test_no_position_is_beyond_the_applied_index() -> None:
    """The index of the command's own record is the highest: everything before it is applied."""
    driver = Driver()
    read_up_to(driver, 3)
    generation = claimed(driver).generation  # at index 4
    assert told(driver.answer(asked(COMMIT, generation=generation, next=6))) == (Result.REFUSED, Reason.POSITION_AHEAD)
    assert driver.answer(asked(COMMIT, generation=generation, next=6)).result is Result.APPLIED
    for action in (CLAIM, RESET):
        assert driver.answer(asked(action, b"new", next=99)).reason is Reason.POSITION_AHEAD


def test_a_recreated_group_is_not_the_old_one() -> None:
    """The generation of a deleted group is never given again, so its owner stays fenced."""
    driver = Driver()
    generation = claimed(driver).generation
    assert told(driver.answer(asked(DELETE, generation=99))) == (Result.COMPARE_FAILED, None)
    assert driver.answer(asked(DELETE)).deleted == 1
    assert told(driver.answer(asked(DELETE, generation=generation))) == (Result.APPLIED, None)
    assert driver.answer(asked(DELETE)).deleted == 0
    assert driver.answer(asked(COMMIT, generation=generation, next=1)).reason is Reason.NO_CONSUMER
    assert claimed(driver).generation > generation
    assert driver.answer(asked(COMMIT, generation=generation, next=1)).result is Result.COMPARE_FAILED


def test_a_full_table_refuses_and_never_evicts() -> None:
    """`consumers_max`: those that are there go on; where one is deleted there is room for another."""
    driver = Driver(Limits(consumers_max=2))
    generation = claimed(driver).generation
    driver.answer(asked(CLAIM, b"h"))
    for action, position in ((CLAIM, 0), (RESET, 1)):
        assert driver.answer(asked(action, b"i", next=position)).reason is Reason.CONSUMERS_FULL
    assert driver.answer(asked(COMMIT, generation=generation, next=2)).result is Result.APPLIED
    driver.answer(asked(DELETE, b"h"))
    assert driver.answer(asked(CLAIM, b"i")).result is Result.APPLIED
    assert [name for name, _ in driver.machine.consumers.rows()] == [b"g", b"i"]


@pytest.mark.parametrize(
    "one",
    [
        asked(CLAIM, None),
        asked(CLAIM, b""),
        asked(CLAIM, b"n" * 5),
        asked(CLAIM, b"\xff"),
        asked(CLAIM, owner=b"o" * 5),
        asked(CLAIM, generation=1),
        asked(COMMIT, next=1),
        asked(COMMIT, generation=1),
        asked(RESET),
        request(Operation.CONSUMER, b"g"),
        request(Operation.CONSUMER, b"g", b"\xc1"),
        request(Operation.CONSUMER, b"g", msgpack.packb([1, 1])),
        request(Operation.CONSUMER, b"g", msgpack.packb([1, 1, -1, 0, b""])),
        request(Operation.CONSUMER, b"g", msgpack.packb([1, 1, 0, 2**53, b""])),
        request(Operation.CONSUMER, b"g", msgpack.packb([1, 1, 0, 0, "text"])),
        request(Operation.CONSUMER, b"g", msgpack.packb(["1", 1, 0, 0, b""])),
        RequestBlock(2, asked(CLAIM).commands * 2),
    ],
)
def test_malformed_consumer_commands_are_refused_and_change_nothing(one: RequestBlock) -> None:
    """Names over `consumer_name_bytes_max`, owners over `consumer_owner_bytes_max`, commands that lack something."""
    driver = Driver(Limits(consumer_name_bytes_max=4, consumer_owner_bytes_max=4))
    assert told(driver.answer(one)) == (Result.REFUSED, Reason.MALFORMED)
    assert not driver.machine.consumers.rows()


@pytest.mark.parametrize("fields", [[2], [1, 9, 0, 0, b""]])
def test_a_command_of_a_later_version_stops_the_node(fields: list[object]) -> None:
    """A newer node may have carried it out: going on would make another state."""
    driver = Driver()
    with pytest.raises(UnknownCommand, match="upgrade"):
        driver.entry(request(Operation.CONSUMER, b"g", msgpack.packb(fields)))
    assert driver.machine.applied_index == 0


def test_a_repeated_commit_gets_its_first_answer() -> None:
    """Under a session, although the group has moved on: the answer that is kept has the group as it was."""
    driver = Driver()
    session = driver.open(60_000)
    generation = claimed(driver).generation
    one = asked(COMMIT, generation=generation, next=2, session=session, sequence=1)
    first = driver.answer(one)
    driver.answer(asked(COMMIT, generation=generation, next=3))
    assert driver.answer(one) == first
    assert first.consumer is not None
    assert first.consumer.next == 2


def test_the_lowest_position_is_that_of_the_slowest_group() -> None:
    """None without groups."""
    driver = Driver()
    read_up_to(driver, 9)
    assert driver.machine.consumers.lowest() is None
    for name, position in ((b"a", 7), (b"b", 3), (b"c", 5)):
        driver.answer(asked(CLAIM, name, next=position))
    assert driver.machine.consumers.lowest() == 3


def test_groups_are_in_the_snapshot_as_of_its_making() -> None:
    """Ordered by name, equal for equal tables; what comes while it is walked is not in it."""
    driver = Driver()
    for name in (b"b", b"a"):
        driver.answer(asked(CLAIM, name, owner=name))
    before = driver.machine.consumers.rows()
    whole = snapshot_bytes(driver.machine)
    walk = driver.machine.snapshot()
    driver.answer(asked(CLAIM, b"c"))
    assert b"".join(walk) == whole
    again = StateMachine.restore([whole])
    assert again.consumers.rows() == before
    assert snapshot_bytes(again) == whole


@given(st.binary(max_size=20) | st.recursive(st.integers() | st.binary(max_size=3), st.lists, max_leaves=8))
def test_any_bytes_are_a_command_or_refused(data: object) -> None:
    """Whatever the bytes: decoding raises MalformedCommand or UnknownCommand, or gives a command."""
    try:
        value = data if isinstance(data, bytes) else msgpack.packb(data)
    except OverflowError:
        return
    try:
        command = decode_consumer(value)
    except (MalformedCommand, UnknownCommand):
        return
    assert decode_consumer(encode_consumer(command)) == command
