"""The golden bytes and numbers of docs/formats_state.md are what the code writes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from raftlog.statemachine.access.admission import Admission, encode_admission
from raftlog.statemachine.access.commands import AccessAction, AccessCommand, Condition, encode_access
from raftlog.statemachine.access.grants import parse_grant
from raftlog.statemachine.answers import Answer, Reason, StepAnswer, encode_answer
from raftlog.statemachine.commands import (
    GET_OPERATION,
    Compare,
    CompareOperator,
    CompareTarget,
    ConsumerGroup,
    Operation,
    Result,
    Txn,
    TxnOperation,
    Version,
)
from raftlog.statemachine.consumers import ConsumerAction, ConsumerCommand, encode_consumer
from raftlog.statemachine.digest import log_row_hashes, state_row_hash
from raftlog.statemachine.snapshot import FRAME_SIZE
from raftlog.statemachine.txn import encode_txn
from tests.statemachine.driver import Driver, request
from tests.statemachine.test_digest import TXN

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats_state.md"


def _txn() -> bytes:
    return encode_txn(
        Txn(
            (Compare(b"a", CompareTarget.MOD, CompareOperator.EQUAL, 3),),
            (TxnOperation(Operation.PUT, b"a", b"1"), TxnOperation(GET_OPERATION, b"b", None, b"c", 5)),
            (TxnOperation(Operation.DELETE_RANGE, b"", None, b""),),
        )
    )


def _answer_of_txn() -> bytes:
    read = StepAnswer(GET_OPERATION, count=1, items=((b"a", Version(b"v", 2, 3, 2, 6)),))
    return encode_answer(Answer(Result.APPLIED, 5, 8, 8, succeeded=True, responses=(read,)))


def _consumer(action: ConsumerAction, generation: int = 0) -> bytes:
    return encode_consumer(ConsumerCommand(action, generation, 3, b"host"))


def _frames() -> list[bytes]:
    """The frames of a small machine: a key put twice, one deleted, a session with an answer and a void."""
    driver = Driver()
    driver.clock_ms = 100
    driver.put(b"a", b"1")
    driver.put(b"a", b"2")
    driver.put(b"b", b"")
    driver.delete(b"b")
    session = driver.open(60_000)
    driver.entry(request(Operation.PUT, b"a", b"3", session=session, sequence=2, settled=1, payload_hash=2**64 - 1))
    driver.entry(request(Operation.VOID, argument=1, session=session))
    driver.entry(request(Operation.CONSUMER, b"g", _consumer(ConsumerAction.CLAIM)))
    return list(driver.machine.snapshot())


def _with_access() -> list[bytes]:
    """The frames of a small machine with access control: the first admin with a token, a role, a user, its session, and
    a group of the admin."""
    driver = Driver()
    role = (parse_grant("write on keys:a*"), parse_grant("read on log"))
    for command in (
        AccessCommand(AccessAction.INIT, "root", token="t1", token_hash=b"h" * 32, label="first"),
        AccessCommand(AccessAction.SET_ROLE, "of-a", grants=role),
        AccessCommand(AccessAction.SET_USER, "ada", roles=("of-a", "reader")),
    ):
        one = request(Operation.ACCESS, None, encode_access(command))
        assert driver.answer(one._replace(admission=_admission("root", 9))).result is Result.APPLIED
    driver.entry(request(Operation.SESSION_OPEN, argument=60_000)._replace(admission=_admission("ada", 3)))
    claim = request(Operation.CONSUMER, b"g", _consumer(ConsumerAction.CLAIM))
    driver.entry(claim._replace(admission=_admission("root", 9)))
    return list(driver.machine.snapshot())


def _admission(name: str, revision: int, *roles: str) -> bytes:
    return encode_admission(Admission(name, revision, roles))


def _point() -> bytes:
    driver = Driver()
    driver.clock_ms = 100
    driver.put(b"a", b"1")
    driver.open(60_000)
    driver.entry(request(Operation.CONSUMER, b"group", _consumer(ConsumerAction.CLAIM)))
    driver.entry(request(Operation.DIGEST_POINT))
    assert driver.machine.point is not None
    return driver.machine.point[1]


def _payload(kind: int) -> bytes:
    return _payload_of(_frames(), kind)


def _payload_of(frames: list[bytes], kind: int) -> bytes:
    return b"".join(frame[FRAME_SIZE:] for frame in frames if frame[5] == kind)


def _row_hash() -> bytes:
    return next(log_row_hashes((TXN,))).to_bytes(8, "big")


WRITTEN: dict[str, Callable[[], bytes]] = {
    "transaction": _txn,
    "answer of a put": lambda: encode_answer(Answer(Result.APPLIED, 3, 7, 7)),
    "answer of a refused request": lambda: encode_answer(Answer(Result.REFUSED, 2, 5, 6, reason=Reason.MALFORMED)),
    "answer of a transaction": _answer_of_txn,
    "answer of a fenced commit": lambda: encode_answer(
        Answer(Result.COMPARE_FAILED, 2, 9, 9, consumer=ConsumerGroup(5, 7, b"host", 1_000, 10))
    ),
    "consumer command": lambda: _consumer(ConsumerAction.COMMIT, 8),
    "snapshot frame": lambda: _frames()[-1],
    "snapshot head": lambda: _payload(1),
    "snapshot keys": lambda: _payload(2),
    "snapshot sessions": lambda: _payload(3),
    "snapshot digests": lambda: _payload(4),
    "snapshot consumers": lambda: _payload(6),
    "snapshot sessions with an owner": lambda: _payload_of(_with_access(), 3),
    "snapshot consumers with a maker": lambda: _payload_of(_with_access(), 6),
    "snapshot access": lambda: _payload_of(_with_access(), 7),
    "admission": lambda: _admission("ada", 7),
    "admission of an identity provider": lambda: _admission("jwt:ada", 7, "writer"),
    "access command": lambda: encode_access(
        AccessCommand(AccessAction.SET_ROLE, "r", grants=(parse_grant("write on keys:a*"),), condition=Condition.IS_NEW)
    ),
    "state row hash": lambda: state_row_hash(b"a", b"2", 4, 5, 2).to_bytes(8, "big"),
    "log row hash": _row_hash,
    "digest point": _point,
}


def golden() -> dict[str, bytes]:
    """The golden bytes of the page by name."""
    found: dict[str, bytes] = {}
    name = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("    golden: "):
            name = line.removeprefix("    golden: ")
            found[name] = b""
        elif line.startswith("    ") and name:
            found[name] += bytes.fromhex(line)
        else:
            name = ""
    return found


def test_the_page_has_golden_bytes_for_each_format() -> None:
    """Each format has its bytes on the page, and there are no others."""
    assert sorted(golden()) == sorted(WRITTEN)


@pytest.mark.parametrize("name", WRITTEN)
def test_golden_bytes(name: str) -> None:
    """The code writes exactly the bytes of the page, for ever."""
    assert WRITTEN[name]().hex() == golden()[name].hex()
