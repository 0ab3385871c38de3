"""Small random histories: what concurrent clients of a right object could have seen, sometimes with one answer spoilt.

A process invokes, the object takes the operation at some moment in between, and the answer comes later, or never.
"""

from __future__ import annotations

from random import Random
from typing import Any

from raftlog.chaos.judge.history import History

Ask = tuple[str, Any, Any]
"""f, key, value of an invocation."""


class Thing:
    """A right object: `ask` draws an operation, `do` carries it out and says (value, result) of the completion."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.state: Any = None
        self.count = 0

    def ask(self) -> Ask:
        raise NotImplementedError

    def do(self, f: str, key: Any, value: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def spoil(self, f: str, value: Any, result: Any) -> tuple[Any, Any]:
        """Another answer than the right one."""
        raise NotImplementedError


class Register(Thing):
    """read, write, cas over few values, unique ones in some histories."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.is_unique = bool(random.getrandbits(1))

    def _value(self) -> int:
        self.count += 1
        return self.count if self.is_unique else self.random.randrange(3)

    def ask(self) -> Ask:
        f = self.random.choice(("read", "read", "write", "cas"))
        if f == "read":
            return f, None, None
        if f == "write":
            return f, None, self._value()
        return f, None, [self.random.randrange(self.count + 1) if self.is_unique else self._value(), self._value()]

    def do(self, f: str, key: Any, value: Any) -> tuple[Any, Any]:
        if f == "read":
            return self.state, None
        if f == "write":
            self.state = value
            return value, None
        fits = self.state == value[0]
        if fits:
            self.state = value[1]
        return value, fits

    def spoil(self, f: str, value: Any, result: Any) -> tuple[Any, Any]:
        if f == "read":
            return self.random.choice([None, *range(max(3, self.count + 1))]), None
        return value, None if result is None else not result


class Text(Thing):
    """get, append, and in some histories put."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.state = ""
        self.has_puts = bool(random.getrandbits(1))
        self.is_unique = bool(random.getrandbits(1))

    def ask(self) -> Ask:
        f = self.random.choice(("get", "get", "append", "append", "put" if self.has_puts else "append"))
        if f == "get":
            return f, None, None
        self.count += 1
        return f, None, chr(96 + self.count) if self.is_unique else self.random.choice(("a", "b", "ab", ""))

    def do(self, f: str, key: Any, value: Any) -> tuple[Any, Any]:
        if f == "get":
            return self.state, None
        self.state = value if f == "put" else self.state + value
        return value, None

    def spoil(self, f: str, value: Any, result: Any) -> tuple[Any, Any]:
        if f != "get":
            return value, result
        return self.random.choice((value[:-1], value[1:], value + "a", value[::-1], "")), None


class Lock(Thing):
    """acquire, release."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.state = False

    def ask(self) -> Ask:
        return self.random.choice(("acquire", "release")), None, None

    def do(self, f: str, key: Any, value: Any) -> tuple[Any, Any]:
        can = bool(self.state == (f == "release"))
        if can:
            self.state = f == "acquire"
        return None, can

    def spoil(self, f: str, value: Any, result: Any) -> tuple[Any, Any]:
        return None, not result


class Registers(Thing):
    """txn over two registers."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.state = {}

    def ask(self) -> Ask:
        steps: list[list[Any]] = []
        for _ in range(self.random.randint(1, 2)):
            key = self.random.choice("xy")
            steps.append([self.random.choice(("read", "write")), key, None])
            if steps[-1][0] == "write":
                self.count += 1
                steps[-1][2] = self.count % 4
        return "txn", None, steps

    def do(self, f: str, key: Any, value: Any) -> tuple[Any, Any]:
        told: list[list[Any]] = []
        for step, name, wanted in value:
            if step == "write":
                self.state[name] = wanted
            told.append([step, name, self.state.get(name)])
        return told, None

    def spoil(self, f: str, value: Any, result: Any) -> tuple[Any, Any]:
        other = self.random.randrange(4)
        return [[step, name, other if step == "read" else seen] for step, name, seen in value], None


class Elements(Thing):
    """add, read."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.state = []

    def ask(self) -> Ask:
        if self.random.getrandbits(1):
            return "read", None, None
        self.count += 1
        return "add", None, self.count

    def do(self, f: str, key: Any, value: Any) -> tuple[Any, Any]:
        if f == "add":
            self.state.append(value)
            return value, None
        return list(self.state), None

    def spoil(self, f: str, value: Any, result: Any) -> tuple[Any, Any]:
        if f == "add":
            return value, result
        return [each for each in range(1, self.count + 1) if self.random.getrandbits(1)], None


class Lists(Thing):
    """append, read and txn over two lists."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.state = {}

    def _step(self) -> list[Any]:
        key = self.random.choice("xy")
        if self.random.getrandbits(1):
            return ["read", key, None]
        self.count += 1
        return ["append", key, self.count]

    def ask(self) -> Ask:
        if self.random.getrandbits(1):
            f, key, value = self._step()
            return f, key, value
        return "txn", None, [self._step() for _ in range(2)]

    def do(self, f: str, key: Any, value: Any) -> tuple[Any, Any]:
        if f != "txn":
            return self._do([f, key, value])[2], None
        return [self._do(step) for step in value], None

    def _do(self, step: list[Any]) -> list[Any]:
        f, key, value = step
        if f == "append":
            self.state[key] = [*self.state.get(key, []), value]
            return step
        return [f, key, list(self.state.get(key, []))]

    def spoil(self, f: str, value: Any, result: Any) -> tuple[Any, Any]:
        if f == "append":
            return value, result
        if f == "read":
            return value[:-1] if value else value, None
        return [[step, key, seen[:-1] if step == "read" and seen else seen] for step, key, seen in value], None


class Accounts(Thing):
    """transfer, read."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.state = {"a": 2, "b": 2}

    def ask(self) -> Ask:
        if self.random.getrandbits(1):
            return "read", None, None
        giver, taker = self.random.choice(("ab", "ba"))
        return "transfer", None, {"from": giver, "to": taker, "amount": self.random.randint(1, 3)}

    def do(self, f: str, key: Any, value: Any) -> tuple[Any, Any]:
        if f == "read":
            return dict(self.state), None
        can = self.state[value["from"]] >= value["amount"]
        if can:
            self.state[value["from"]] -= value["amount"]
            self.state[value["to"]] += value["amount"]
        return value, can

    def spoil(self, f: str, value: Any, result: Any) -> tuple[Any, Any]:
        if f == "transfer":
            return value, not result
        taken = self.random.randint(-1, 1)
        return {"a": value["a"] + taken, "b": value["b"] - taken}, None


def history_of(thing: Thing, random: Random, operations: int, processes: int = 3, spoilt: int = 1) -> History:
    """A history of that many invocations; `spoilt` of the answers, if any, are not what the thing said."""
    history = History()
    idle = list(range(processes))
    open_: dict[int, Any] = {}  # process -> its call; then its answer
    left, fresh = operations, processes
    is_right = bool(random.getrandbits(1))
    while left or open_:
        if not idle and not open_:  # all are gone
            idle.append(fresh)
            fresh += 1
        if left and idle and (not open_ or random.getrandbits(1)):
            process = idle.pop(random.randrange(len(idle)))
            f, key, value = thing.ask()
            history.invoke(process, f, key, value)
            open_[process] = [f, key, value, None]
            left -= 1
            continue
        process = random.choice(list(open_))
        asked = open_[process]
        if asked[3] is None:
            if random.randrange(10):
                asked[3] = thing.do(*asked[:3])
            else:  # it never arrives
                del open_[process]
                if random.getrandbits(1):
                    history.complete(process, "fail")
                    idle.append(process)
                else:
                    history.complete(process, "info")
                    idle.append(fresh)
                    fresh += 1
            continue
        del open_[process]
        if not random.randrange(6):  # it happened, but has no answer
            if random.getrandbits(1):
                history.complete(process, "info", 0)
                idle.append(process)
            continue  # or without any completion: the process is gone
        value, result = asked[3]
        if spoilt and not is_right and random.getrandbits(1):
            value, result = thing.spoil(asked[0], value, result)
            spoilt -= 1
        history.complete(process, "ok", value, result=result)
        idle.append(process)
    return history
