"""Decides whether a history is linearizable: the search of Wing and Gong with Lowe's memory, within limits.

**The search.** Calls and returns of one key stand in one list in the order of time. Any call before the first remaining
return may be the next to take effect. If the model accepts it with the observed answer, the call and its return are
taken out, and the search begins again at the front. At a return it undoes the last choice. Tried pairs (set of
operations taken, state) are never entered twice (Lowe, "Testing for linearizability", 2017). The search ends when every
operation that returned is taken. Operations of unknown outcome may be left over.

**What makes it fast**, all of it exact:
- Keys are independent (Herlihy and Wing's locality) and take turns in growing slices, so that one hard key does not
  hide a bad one.
- A read that fits the state is taken at once, without alternative: it can stand first in any order that works.
- A state that is still to be seen, and that no call can lead back to, is not left.
- Unknown writes that no read saw are left out (`Model.narrow`).
- Sets are ints. Operations that returned are numbered in order of their calls and kept as (all below `base`, bits
  above). So a long history does not make long ints. Unknown operations have a set of their own.

No clock in here: limits are steps and remembered states, and `is_over`, asked between slices, may end it by time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

from raftlog.chaos.judge.history import Operation
from raftlog.chaos.judge.model import BEYOND, IMPOSSIBLE, Call, Model, Shape, State, freeze
from raftlog.chaos.judge.verdicts import KeyReport, Report, Verdict, worst

SLICE_STEPS: Final = 2_000
"""The first turn of a key, about a millisecond; small histories need no second."""

SLICE_STEPS_MAX: Final = 64_000
"""A longest turn, some tens of milliseconds: how late `is_over` may be asked."""


EXPLAIN_STEPS_MAX: Final = 200_000
"""Steps for finding the first impossible operation once a history is known to be invalid: a tenth of a second. If they
do not suffice, an operation is named by which it was impossible, and there may be an earlier one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When the answer is unknown. A state takes about 250 bytes, so two million are half a gigabyte."""

    steps: int = 200_000_000
    states: int = 2_000_000


class _Interned:
    """States as small ints, and per shape of call a table from each state to the next (-1: impossible).

    `needed` and `makers` count, for each state, the calls not yet taken that must see it, and that can lead to it.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.ids: dict[State, int] = {}
        self.states: list[State] = []
        self.needed: list[int] = []
        self.makers: list[int] = []
        self.tables: dict[Shape, _Moves] = {}

    def id_of(self, state: State) -> int:
        """The state's number."""
        number = self.ids.get(state)
        if number is None:
            number = self.ids[state] = len(self.states)
            self.states.append(state)
            self.needed.append(0)
            self.makers.append(0)
        return number

    def moves(self, shape: Shape) -> _Moves:
        """The table of calls of that shape."""
        table = self.tables.get(shape)
        if table is None:
            table = self.tables[shape] = _Moves(self, shape)
        return table


class _Moves(dict[int, int]):
    """What one shape of call makes of each state; worked out when first asked."""

    def __init__(self, interned: _Interned, shape: Shape) -> None:
        super().__init__()
        self.interned = interned
        self.shape = shape

    def __missing__(self, state: int) -> int:
        interned = self.interned
        after = interned.model.step(interned.states[state], self.shape)
        self[state] = number = -1 if after is IMPOSSIBLE else interned.id_of(after)
        return number


_Frame = tuple[Any, int, int, int, int, int, bool]
"""The frame below, then the values before a choice: entry chosen, state, base, bits, unknowns; whether it was the only
choice. Frames are a linked list, so keeping the best one found costs nothing.
"""


class _Timeline:
    """The list of calls and returns, out of which a search takes calls. Between two returns reads come first: that
    order is free."""

    def __init__(self, calls: Sequence[Call]) -> None:
        events: list[tuple[int, int]] = []
        for number, call in enumerate(calls):
            operation = call.operation
            events.append((operation.called, number))
            if not call.is_unknown:
                assert operation.returned is not None
                events.append((operation.returned, ~number))
        events.sort()
        self.who = who = [0]  # the number of a call at each position, ~number at its return
        run: list[int] = []
        for _, each in events:
            if each >= 0:
                run.append(each)
            else:
                who += sorted(run, key=lambda number: not calls[number].is_pure)
                who.append(each)
                run.clear()
        who += run
        end = len(who)
        who.append(~len(calls))  # looks like a return; nothing gets there while an operation is left
        self.following = list(range(1, end + 2))
        self.previous = list(range(-1, end))
        self.returns = [0] * len(calls)
        self.number = [0] * len(calls)  # of those that returned 0, 1, 2, ...; of the unknown ~0, ~1, ~2, ...
        self.left = unknown = 0  # calls that returned, and are not taken
        for position in range(1, end):
            each = who[position]
            if each < 0:
                self.returns[~each] = position
            elif calls[each].is_unknown:
                unknown += 1
                self.number[each] = -unknown
            else:
                self.number[each] = self.left
                self.left += 1


class Search:
    """The search for one key; `run` goes on with it."""

    def __init__(
        self, key: Any, model: Model, start: State, calls: Sequence[Call], operations: Sequence[Operation]
    ) -> None:
        self.key = key
        self.operations = operations  # of that key, also those that say nothing
        problem = model.narrow(start, calls)
        self.calls = kept = problem.calls
        self.steps = self.states = 0  # made; remembered
        self._interned = interned = _Interned(model)
        start_id = interned.id_of(problem.start)
        self._moves = [interned.moves(call.shape) for call in kept]
        self._is_pure = [call.is_pure for call in kept]
        self._is_guarded = problem.is_guarded
        self._guard(kept)
        self._timeline = _Timeline(kept)
        self._seen: set[tuple[int, int, int, int]] = set()
        self._at: _Frame = (None, self._timeline.following[0], start_id, 0, 0, 0, False)  # where the next slice begins
        self._furthest: tuple[int, _Frame | None] = (0, None)  # the last return that was reached, and the choices then
        self.verdict: Verdict | None = None if self._timeline.left else Verdict.VALID

    def end(self, verdict: Verdict) -> None:
        """Sets the verdict and drops the remembered states."""
        self.verdict = verdict
        self._seen = set()

    def _guard(self, calls: Sequence[Call]) -> None:
        """Counts the calls that must see each state (-1: none), and the calls that can lead to it."""
        self._sees = [-1] * len(calls)
        self._makes: list[tuple[int, ...]] = [()] * len(calls)
        if not self._is_guarded:
            return
        interned = self._interned
        self._sees = [interned.id_of(call.sees[0]) if call.sees and not call.is_unknown else -1 for call in calls]
        self._makes = [tuple(map(interned.id_of, call.makes)) for call in calls]
        for sees, makes in zip(self._sees, self._makes, strict=True):
            if sees >= 0:
                interned.needed[sees] += 1
            for state in makes:
                interned.makers[state] += 1

    def run(self, budget: int, states_max: int) -> Verdict | None:
        """Goes on for at most that many steps; the verdict, or None where it is not known yet."""
        if self.verdict is not None:
            return self.verdict
        line = self._timeline
        who, following, previous, returns = line.who, line.following, line.previous, line.returns
        moves, is_pure, number, seen = self._moves, self._is_pure, line.number, self._seen
        sees, makes, needed, makers = self._sees, self._makes, self._interned.needed, self._interned.makers
        is_guarded = self._is_guarded
        beyond = self._interned.id_of(BEYOND)
        (frame, entry, state, base, bits, unknowns, forced), left = self._at, line.left
        steps = 0
        while steps < budget and len(seen) < states_max:
            steps += 1
            which = who[entry]
            if which >= 0:
                after = moves[which][state]
                if after < 0:
                    entry = following[entry]
                    continue
                if after == state:
                    forced = is_pure[which] or state == beyond
                else:
                    forced = False
                    if is_guarded and needed[state] > (sees[which] == state) and not makers[state]:
                        entry = following[entry]  # a call that must still see this value never would
                        continue
                place = number[which]
                if place >= 0:
                    new_base, new_bits, new_unknowns = base, bits | 1 << (place - base), unknowns
                    if new_bits & 1:
                        shift = (~new_bits & (new_bits + 1)).bit_length() - 1
                        new_base += shift
                        new_bits >>= shift
                else:
                    new_base, new_bits, new_unknowns = base, bits, unknowns | 1 << ~place
                mark = (new_base, new_bits, new_unknowns, after)
                if mark not in seen:
                    seen.add(mark)
                    frame = (frame, entry, state, base, bits, unknowns, forced)
                    state, base, bits, unknowns = after, new_base, new_bits, new_unknowns
                    before, behind = previous[entry], following[entry]
                    following[before] = behind
                    previous[behind] = before
                    if is_guarded:
                        for value in makes[which]:
                            makers[value] -= 1
                        if sees[which] >= 0:
                            needed[sees[which]] -= 1
                    if place >= 0:
                        position = returns[which]
                        before, behind = previous[position], following[position]
                        following[before] = behind
                        previous[behind] = before
                        left -= 1
                        if not left:
                            self.verdict = Verdict.VALID
                            break
                    entry = following[0]
                    continue
                if not forced:
                    entry = following[entry]
                    continue
            elif entry > self._furthest[0]:
                self._furthest = entry, frame
            # undo the last choice, and all before it that were the only ones
            while True:
                if frame is None:
                    self.verdict = Verdict.INVALID
                    break
                frame, entry, state, base, bits, unknowns, forced = frame
                which = who[entry]
                if is_guarded:
                    for value in makes[which]:
                        makers[value] += 1
                    if sees[which] >= 0:
                        needed[sees[which]] += 1
                if number[which] >= 0:
                    position = returns[which]
                    following[previous[position]] = position
                    previous[following[position]] = position
                    left += 1
                following[previous[entry]] = entry
                previous[following[entry]] = entry
                if not forced:
                    break
            if self.verdict is not None:
                break
            entry = following[entry]
        self._at, line.left = (frame, entry, state, base, bits, unknowns, False), left
        self.steps += steps
        self.states = len(seen)
        return self.verdict

    def report(self) -> KeyReport:
        """The present result; for an undecided key, how far the search came."""
        verdict = self.verdict or Verdict.UNKNOWN
        prefix: tuple[Operation, ...] = ()
        impossible = None
        furthest, frame = self._furthest
        if verdict is not Verdict.VALID and furthest:
            prefix = self._order(frame)
            impossible = self.calls[~self._timeline.who[furthest]].operation
        return KeyReport(self.key, verdict, len(self.operations), self.steps, self.states, prefix, impossible)

    def _order(self, frame: _Frame | None) -> tuple[Operation, ...]:
        """The operations taken up to that choice."""
        order: list[Operation] = []
        while frame is not None:
            order.append(self.calls[self._timeline.who[frame[1]]].operation)
            frame = frame[0]
        return tuple(reversed(order))

    @property
    def order(self) -> tuple[Operation, ...]:
        """The order that was found, once the verdict is valid."""
        return self._order(self._at[0])


def searches(operations: Iterable[Operation], model: Model, init: Any = None) -> list[Search]:
    """One search per key, in order of the keys' first operations. Raises BadHistory or BadInit."""
    start = model.start(init)
    keys: dict[Hashable, tuple[Any, list[Call], list[Operation]]] = {}
    for operation in operations:
        key = freeze(operation.key)
        found = keys.get(key)
        if found is None:
            found = keys[key] = (operation.key, [], [])
        found[2].append(operation)
        call = model.call(operation)
        if call is not None:
            found[1].append(call)
    return [Search(key, model, start, calls, raw) for key, calls, raw in keys.values()]


def explained(operations: Sequence[Operation], model: Model, start: State, report: KeyReport) -> KeyReport:
    """The report of an invalid key with its first impossible operation and an order of what comes before.

    A beginning of a history is what had been called by then; what had not yet ended may have happened or not. Every
    beginning of a linearizable history is linearizable, so the first that is not is found by halving. (The search for
    the whole looks ahead, and so fails earlier than where somebody could first have noticed.)
    """
    done = sorted((each for each in operations if each.outcome == "ok"), key=lambda each: each.returned or 0)
    # the first `high` completions cannot be explained; the first `low` can, or that is undecided
    low, high = 0, len(done)
    order: tuple[Operation, ...] = ()
    left = EXPLAIN_STEPS_MAX
    while low + 1 < high and left > 0:
        middle = (low + high) // 2
        end = done[middle - 1].returned
        assert end is not None
        search = Search(report.key, model, start, _until(operations, end, model), ())
        verdict = search.run(left // 4 + 1, left)
        left -= search.steps + len(search.calls)
        if verdict is Verdict.INVALID:
            high = middle
        else:
            low = middle
            order = search.order if verdict is Verdict.VALID else order
    return replace(report, prefix=order, impossible=done[high - 1] if done else None)


def _until(operations: Sequence[Operation], end: int, model: Model) -> list[Call]:
    """The calls of the beginning that ends with line `end`."""
    calls: list[Call] = []
    for each in operations:
        if each.called < end and each.outcome != "fail":
            if each.returned is not None and each.returned > end:
                each = replace(each, outcome="info", returned=None, output=None, result=None)
            call = model.call(each)
            if call is not None:
                calls.append(call)
    return calls


def check(
    operations: Sequence[Operation],
    model: Model,
    init: Any = None,
    *,
    limits: Limits = Limits(),
    is_over: Callable[[], bool] | None = None,
) -> Report:
    """Whether the operations (in order of their calls) are linearizable. Raises BadHistory or BadInit.

    It stops at the first key that is not linearizable. Keys undecided by then have verdict unknown, and the whole is
    invalid.
    """
    found = searches(operations, model, init)
    waiting = list(found)
    steps_left, remembered, budget = limits.steps, 0, SLICE_STEPS
    why = ""
    while waiting and steps_left > 0:
        for search in waiting:
            before = (search.steps, search.states)
            verdict = search.run(min(budget, steps_left), limits.states - remembered + search.states)
            steps_left -= search.steps - before[0]
            remembered += search.states - before[1]
            if verdict is not None:
                remembered -= search.states
                search.end(verdict)
                if verdict is Verdict.INVALID:
                    steps_left = 0
            elif remembered >= limits.states:
                why = f"{limits.states:,} states were remembered, which is the limit"
                hardest = max((each for each in waiting if each.verdict is None), key=attrgetter("states"))
                remembered -= hardest.states  # the others go on without it
                hardest.end(Verdict.UNKNOWN)
            elif steps_left <= 0:
                why = f"{limits.steps:,} steps were made, which is the limit"
            if is_over is not None and is_over() and steps_left > 0:
                why, steps_left = "the time is up", 0
            if steps_left <= 0:
                break
        waiting = [search for search in waiting if search.verdict is None]
        budget = min(2 * budget, SLICE_STEPS_MAX)
    reports = tuple(
        explained(search.operations, model, model.start(init), search.report())
        if search.verdict is Verdict.INVALID
        else search.report()
        for search in found
    )
    verdict = worst(report.verdict for report in reports)
    problems = tuple(_sentence(report) for report in reports if report.verdict is Verdict.INVALID)
    if verdict is Verdict.UNKNOWN:
        undecided = sum(report.verdict is Verdict.UNKNOWN for report in reports)
        problems = (f"{why}, and {undecided} of {len(reports)} keys are undecided",)
    counts = (
        ("keys", len(reports)),
        ("steps", sum(report.steps for report in reports)),
        ("states", sum(report.states for report in reports)),
    )
    return Report(verdict, model.name, len(operations), problems, reports, counts)


def _sentence(report: KeyReport) -> str:
    key = "" if report.key is None else f"key {report.key!r}: "
    return (
        f"{key}no order of the operations explains {report.impossible}; "
        f"{len(report.prefix)} of {report.operations} operations can be put in order before it"
    )
