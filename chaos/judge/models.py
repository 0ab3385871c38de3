"""Models a register, a lock, a map of registers, a growing text and a bank: the answer that each call must get.

A model turns an operation of a history into a `Call`. It drops operations that did not happen, or whose answer has no
information. It also computes the state after each call. Everything is pure; `raftlog.chaos.judge.linearizable` does the
search. docs/history.md lists functions and values.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Final

from raftlog.chaos.judge.history import BadHistory, Operation
from raftlog.chaos.judge.model import (
    BEYOND,
    IMPOSSIBLE,
    BadInit,
    Call,
    Model,
    Problem,
    Shape,
    State,
    freeze,
    text_of,
    verdict_of_result,
    where,
    without_unseen,
)


class CasRegister(Model):
    """One value per key: read, write, and cas [from, to], whose `ok` with result false saw another value than from."""

    _READ: Final = 0
    _WRITE: Final = 1
    _CAS: Final = 2
    _NOT: Final = 3

    reads = "read"

    def __init__(self, name: str = "cas-register", functions: tuple[str, ...] = ("read", "write", "cas")) -> None:
        self.name = name
        self.functions = functions

    def start(self, init: Any) -> State:
        """Any JSON value; null where nothing was written yet."""
        return freeze(init)

    def told(self, operation: Operation) -> Call | None:
        """An ok cas with result false saw another value."""
        is_unknown = operation.outcome == "info"
        if operation.f == "read":
            value = freeze(operation.output)
            return Call(operation, (self._READ, value, None), is_pure=True, sees=(value,))
        if operation.f == "write":
            value = freeze(operation.value)
            return Call(operation, (self._WRITE, value, None), is_unknown=is_unknown, makes=(value,))
        pair = operation.value
        if type(pair) is not list or len(pair) != 2:
            raise BadHistory(f"line {operation.called}: the value of cas is [from, to], not {text_of(pair)}")
        before, after = freeze(pair[0]), freeze(pair[1])
        if not is_unknown and not verdict_of_result(operation):
            return Call(operation, (self._NOT, before, None), is_pure=True, denies=True)
        return Call(operation, (self._CAS, before, after), is_unknown=is_unknown, sees=(before,), makes=(after,))

    def step(self, state: State, shape: Shape) -> State:
        """The value after it."""
        kind, value, after = shape
        if kind == self._READ:
            return state if state == value else IMPOSSIBLE
        if kind == self._WRITE:
            return value  # type: ignore[no-any-return]
        if kind == self._CAS:
            return after if state == value else IMPOSSIBLE
        return state if state != value else IMPOSSIBLE

    def narrow(self, start: State, calls: Sequence[Call]) -> Problem:
        """Without unknown writes that no read saw."""
        return Problem(start, without_unseen(calls), is_guarded=True)


class Mutex(Model):
    """A lock per key: acquire and release, each `ok` or, with result false, an observation that it could not be."""

    name = "mutex"
    functions = ("acquire", "release")

    def start(self, init: Any) -> State:
        """True where it is held to begin with; absent or false where it is free."""
        if init not in (None, True, False):
            raise BadInit(f"a mutex starts as true (held) or false (free), not {text_of(init)}")
        return bool(init)

    def told(self, operation: Operation) -> Call | None:
        """A change, or with result false the sight of the other state."""
        before = operation.f == "release"
        if operation.outcome == "info":
            return Call(operation, (before, not before), is_unknown=True)
        if verdict_of_result(operation):
            return Call(operation, (before, not before))
        return Call(operation, (not before, not before), is_pure=True)

    def step(self, state: State, shape: Shape) -> State:
        """Only a free lock is acquired, only a held one released (by any process)."""
        before, after = shape
        return after if state == before else IMPOSSIBLE


class MultiRegister(Model):
    """A map of registers: `txn` reads and writes several at once. A null read fits any state."""

    name = "multi-register"
    functions = ("txn",)

    def start(self, init: Any) -> State:
        """An object, or a list of [key, value] pairs: the registers' values; the others start as null."""
        if init is None:
            init = {}
        pairs = list(init.items()) if type(init) is dict else init
        if type(pairs) is not list or any(type(pair) not in (list, tuple) or len(pair) != 2 for pair in pairs):
            raise BadInit("multi-register starts as an object, or as a list of [key, value] pairs")
        return frozenset((_register(key), freeze(value)) for key, value in pairs if value is not None)

    def told(self, operation: Operation) -> Call | None:
        """The steps of a transaction, reads as they were answered; of one whose end is unknown only the writes."""
        is_ok = operation.outcome == "ok"
        steps = operation.output if is_ok and operation.output is not None else operation.value
        if type(steps) is not list:
            raise BadHistory(f"{where(operation)}: the value of txn is a list of steps, not {text_of(steps)}")
        shape: list[tuple[bool, Hashable, Hashable]] = []
        for step in steps:
            if type(step) is not list or len(step) != 3 or step[0] not in ("read", "write", "r", "w"):
                raise BadHistory(f'{where(operation)}: a step is ["read" or "write", key, value], not {text_of(step)}')
            is_write = step[0] in ("write", "w")
            if is_write or (is_ok and step[2] is not None):
                shape.append((is_write, _register(step[1]), freeze(step[2])))
        if not shape:
            return None
        writes = tuple((key, value) for is_write, key, value in shape if is_write)
        reads = tuple((key, value) for is_write, key, value in shape if not is_write)
        return Call(operation, tuple(shape), is_pure=not writes, is_unknown=not is_ok, sees=reads, makes=writes)

    def step(self, state: State, shape: Shape) -> State:
        """Step by step: a transaction reads what it wrote."""
        values = dict(state)  # type: ignore[call-overload]
        for is_write, key, value in shape:
            if is_write:
                values[key] = value
            elif values.get(key) != value:
                return IMPOSSIBLE
        return frozenset(values.items())

    def narrow(self, start: State, calls: Sequence[Call]) -> Problem:
        """Without unknown transactions whose writes no read saw."""
        return Problem(start, without_unseen(calls))


def _register(key: Any) -> Hashable:
    """A register's name: in a JSON object it can only be text, so 1 and "1" are the same register."""
    return key if type(key) is str else text_of(key)


class KvAppend(Model):
    """A text per key that starts empty: get, put, append."""

    name = "kv-append"
    functions = ("get", "put", "append")
    reads = "get"
    _GET: Final = 0
    _PUT: Final = 1
    _APPEND: Final = 2
    _GROW: Final = 3

    def start(self, init: Any) -> State:
        """A text; absent for the empty one."""
        if init is not None and type(init) is not str:
            raise BadInit(f"kv-append starts as a text, not as {text_of(init)}")
        return init or ""

    def told(self, operation: Operation) -> Call | None:
        """A null get found no key, which is the empty text."""
        f, outcome = operation.f, operation.outcome
        value = (operation.output or "") if f == "get" else operation.value
        if type(value) is not str:
            raise BadHistory(f"{where(operation)}: the value of {f} is a text, not {text_of(value)}")
        if f == "get":
            return Call(operation, (self._GET, value), is_pure=True)
        kind = self._PUT if f == "put" else self._APPEND
        return Call(operation, (kind, value), is_unknown=outcome == "info")

    def step(self, state: State, shape: Shape) -> State:
        """The text after the call. Narrowed, the state is the length of the part that was read in the end."""
        kind, value, *grown = shape
        if kind == self._GET:
            return state if state == value else IMPOSSIBLE
        if kind == self._PUT:
            return value  # type: ignore[no-any-return]
        if kind == self._APPEND:
            return f"{state}{value}"
        if state == BEYOND:
            return BEYOND
        assert type(state) is int
        (longest,) = grown
        if state == len(longest) and value:
            return BEYOND  # no read reached this length
        return state + len(value) if longest.startswith(value, state) else IMPOSSIBLE

    def narrow(self, start: State, calls: Sequence[Call]) -> Problem:
        """Without unknown writes whose text no read saw.

        A text that only grows is a prefix of the longest text that was read, while that read is still to come. So its
        length identifies it, and an append fits at few lengths. With puts, an earlier text comes back only by a put
        that is a prefix of it.
        """
        assert type(start) is str
        read = [call.shape[1] for call in calls if call.shape[0] == self._GET]
        everything = "\0".join(read)  # a text that spans two reads is kept: that costs time, and is right
        kept = [call for call in calls if not (call.is_unknown and call.shape[1] and call.shape[1] not in everything)]
        longest = max(read, key=len, default=start)
        only_grows = longest.startswith(start) and all(longest.startswith(each) for each in read)
        if only_grows and all(call.shape[0] != self._PUT for call in kept):
            return Problem(len(start), [self._grown(call, longest) for call in kept], is_guarded=True)
        texts = list(dict.fromkeys(read))
        return Problem(start, [self._guarded(call, texts) for call in kept], is_guarded=True)

    def _grown(self, call: Call, longest: str) -> Call:
        kind, value = call.shape
        if kind == self._GET:
            return replace(call, shape=(self._GET, len(value)), sees=(len(value),))
        return replace(call, shape=(self._GROW, value, longest))  # makes nothing: no length comes back

    def _guarded(self, call: Call, texts: Sequence[str]) -> Call:
        kind, value = call.shape
        if kind == self._PUT:
            return replace(call, makes=tuple(text for text in texts if text.startswith(value)))
        return replace(call, sees=(value,)) if kind == self._GET else call


class Bank(Model):
    """Accounts with balances: `transfer` {from, to, amount} keeps the sum and overdraws nothing; `read` sees all or
    some of them at one moment."""

    name = "bank"
    functions = ("transfer", "read")
    reads = "read"

    def start(self, init: Any) -> State:
        """An object: the balance of every account."""
        if type(init) is not dict or not init or any(type(balance) is not int for balance in init.values()):
            raise BadInit("a bank starts as an object of accounts and their whole balances: --init '{\"a\": 10}'")
        return tuple(sorted(init.items()))

    def told(self, operation: Operation) -> Call | None:
        """A transfer that is `ok` with result false saw too little money."""
        outcome = operation.outcome
        if operation.f == "read":
            return Call(operation, ("read", tuple(sorted(balances_of(operation).items()))), is_pure=True)
        value = operation.value
        try:
            giver, taker, amount = _register(value["from"]), _register(value["to"]), value["amount"]
        except (TypeError, KeyError):
            giver = taker = amount = None
        if type(amount) is not int or amount < 0:
            raise BadHistory(f"line {operation.called}: a transfer is {{from, to, amount}}, not {text_of(value)}")
        if outcome == "ok" and not verdict_of_result(operation):
            return Call(operation, ("poor", giver, amount), is_pure=True)
        return Call(operation, ("transfer", giver, taker, amount), is_unknown=outcome == "info")

    def step(self, state: State, shape: Shape) -> State:
        """The balances after it."""
        balances: dict[Hashable, int] = dict(state)  # type: ignore[call-overload]
        match shape:
            case ("read", seen):
                fits = all(balances.get(account) == balance for account, balance in seen)
                return state if fits else IMPOSSIBLE
            case ("poor", giver, amount):
                return state if balances.get(giver, 0) < amount else IMPOSSIBLE
            case (_, giver, taker, amount):
                if giver not in balances or taker not in balances or balances[giver] < amount:
                    return IMPOSSIBLE
                balances[giver] -= amount
                balances[taker] += amount
                return tuple(sorted(balances.items()))
        raise AssertionError(shape)


def balances_of(operation: Operation) -> dict[str, int]:
    """What a read of a bank saw. Raises BadHistory."""
    seen = operation.output
    if type(seen) is not dict or any(type(balance) is not int for balance in seen.values()):
        raise BadHistory(f"{where(operation)}: a read of a bank is an object of balances, not {text_of(seen)}")
    return seen


MODELS: Final[dict[str, Model]] = {
    model.name: model
    for model in (
        CasRegister("register", ("read", "write")),
        CasRegister(),
        KvAppend(),
        Mutex(),
        MultiRegister(),
        Bank(),
    )
}
"""The models that are decided by search, by name."""
