"""Lists the checkers by name: the way in which each model's history is judged.

Models with a state are searched (`raftlog.chaos.judge.linearizable`), histories of sets, lists and logs are decided in
one pass. A bank is both: no search is needed to see that a sum is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from raftlog.chaos.judge.history import Operation
from raftlog.chaos.judge.linearizable import Limits, check
from raftlog.chaos.judge.list_append import check_list_append
from raftlog.chaos.judge.log_checker import check_log
from raftlog.chaos.judge.model import BadInit, text_of, unknown_function
from raftlog.chaos.judge.models import MODELS, balances_of
from raftlog.chaos.judge.set_checker import check_set
from raftlog.chaos.judge.verdicts import Report, Verdict, report_of

_WHOLE: Final = {"set": check_set, "list-append": check_list_append, "log": check_log}
NAMES: Final = (*MODELS, *_WHOLE)


def judge(
    operations: Sequence[Operation],
    model: str,
    init: Any = None,
    *,
    limits: Limits | None = None,
    is_over: Callable[[], bool] | None = None,
) -> Report:
    """The verdict of the model of that name. Raises BadHistory or BadInit."""
    limits = limits or Limits()
    if model in _WHOLE:
        if init is not None:
            raise BadInit(f"{model} starts empty: it takes no start value")
        return _WHOLE[model](operations)
    if model == "bank":
        sums = _sums(operations, init)
        if sums.verdict is Verdict.INVALID or init is None:
            return sums
        report = check(operations, MODELS[model], init, limits=limits, is_over=is_over)
        return replace(report, counts=(*sums.counts, *report.counts))
    return check(operations, MODELS[model], init, limits=limits, is_over=is_over)


def _sums(operations: Sequence[Operation], init: Any) -> Report:
    """Whether every read has the sum of the start (without one: of the first read), and no balance below zero."""
    problems: list[str] = []
    reads = 0
    total: int | None = None
    accounts: set[str] | None = None
    if init is not None:
        MODELS["bank"].start(init)
        total, accounts = sum(init.values()), set(init)
    for each in operations:
        if each.f not in ("read", "transfer"):
            raise unknown_function("bank", ("transfer", "read"), each)
        if each.f != "read" or each.outcome != "ok":
            continue
        reads += 1
        balances = balances_of(each)
        if accounts is None or total is None:
            total, accounts = sum(balances.values()), set(balances)
        if set(balances) == accounts and sum(balances.values()) != total:
            problems.append(f"the sum of {each} is {sum(balances.values())}, not {total}")
        below = {account: balance for account, balance in balances.items() if balance < 0}
        if below:
            problems.append(f"{each} has balances below zero: {text_of(below)}")
    return report_of("bank", len(operations), problems, {"reads": reads})
