"""Checks the arguments of a client where they are given, so that the error names argument, value and type.

`append("text")` would otherwise fail far from its caller, among the appends of others that it travels with, and a put
without a value would be a delete. Both clients, their consumer groups and the requests are decorated with it.
"""

from __future__ import annotations

import functools
import inspect
import re
import reprlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from types import UnionType
from typing import Any, Final, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from raftlog.cluster.api.values import NUMBER_MAX

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
M = TypeVar("M", bound=Callable[..., Any])

_TAKES: Final[dict[Any, tuple[type, ...]]] = {
    bytes: (bytes, bytearray),
    float: (float, int),
    Sequence: (Collection,),
    Mapping: (dict, Mapping),
    Literal: (str,),
}
"""What an annotation takes besides itself, or in place of it."""
_OWN: Final = (bool, str, bytes, bytearray, dict)
"""Values of these are taken only where these are named: a bool is no number, and a text no sequence of texts."""
_UNBOUNDED: Final = frozenset((bytes, str, bool, type(None)))
"""Every value of these types is taken where its type is."""
_PLACED: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_Wanted = tuple[str, tuple[type, ...], str, tuple[object, ...]]  # name, types, their words, the values of a Literal


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function; called with an argument that does not fit its annotation, it raises TypeError, or ValueError for a
    number that is negative or too large, and for a text that is none of a Literal's."""
    parameters = inspect.signature(function).parameters
    hints = get_type_hints(function)
    by_name = {name: wanted for name, each in parameters.items() if (wanted := _wanted(each, hints.get(name)))}
    at_once = {name: _UNBOUNDED & {*types} if not values else () for name, types, _, values in by_name.values()}
    placed = [(at_once.get(name, ()), by_name.get(name)) for name, each in parameters.items() if each.kind in _PLACED]
    if not by_name:
        return function

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for (fit, wanted), value in zip(placed, args, strict=False):
            if wanted is not None and type(value) not in fit:
                require(value, *wanted)
        for name, value in kwargs.items():
            if name in by_name and type(value) not in at_once[name]:
                require(value, *by_name[name])
        return function(*args, **kwargs)

    return call


def checked_methods(client: C) -> C:
    """The class, with its public methods checked."""
    for name, method in list(vars(client).items()):
        if inspect.isfunction(method) and (not name.startswith("_") or name == "__init__"):
            if not hasattr(method, "__wrapped__"):  # by `as_method`: the request checks
                setattr(client, name, checked(method))
    return client


def as_method(method: M, request: Callable[..., object]) -> M:
    """The method, with the name, the docstring and the parameters of a request."""
    functools.update_wrapper(method, request)
    own = inspect.signature(request)
    first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = own.replace(parameters=[first, *own.parameters.values()])  # type: ignore[attr-defined]
    return method


def require(value: object, name: str, types: tuple[type, ...], words: str, values: tuple[object, ...] = ()) -> None:
    """Raises TypeError unless the value is of one of the types, ValueError for a number out of bounds, or for none of
    the values. A float is seconds, which may be over already."""
    kind = type(value)
    if kind not in types or values:
        own = next((each for each in _OWN if isinstance(value, each)), None)
        if not isinstance(value, types) or (own is not None and own not in types):
            shown = "None" if value is None else f"{kind.__name__} {reprlib.repr(value)}"
            raise TypeError(f"{name} is {shown}: give {words}")
        if values and value not in values:
            raise ValueError(f"{name} is {reprlib.repr(value)}: give {words}")
    if isinstance(value, float) or (float in types and isinstance(value, int)):
        if not abs(value) <= threading.TIMEOUT_MAX:
            raise ValueError(f"{name} is {value}: give seconds, at most {threading.TIMEOUT_MAX:.0f}")
    elif isinstance(value, int) and kind is not bool and not 0 <= value <= NUMBER_MAX:
        raise ValueError(f"{name} is {reprlib.repr(value)}: give a number from 0 to {NUMBER_MAX}")


def require_bytes(value: object, name: str, *, optional: bool = False) -> None:
    """The same of a value that may be bytes, or None if it is optional."""
    if type(value) is not bytes and not (optional and value is None):
        require(value, name, _TAKES[bytes], "bytes or None" if optional else "bytes")


def _wanted(parameter: inspect.Parameter, hint: Any) -> _Wanted | None:
    """What an annotation takes; None where it says nothing that can be checked (a type variable, no annotation)."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [get_origin(each) or each for each in parts]
    if not all(kind in _TAKES or isinstance(kind, type) for kind in kinds):
        return None
    types = tuple(each for kind in kinds for each in _TAKES.get(kind, (kind,)))
    values = tuple(value for each in parts if get_origin(each) is Literal for value in get_args(each))
    words = " or ".join(map(repr, values)) or re.sub(r"\w+\.", "", str(parameter.annotation)).replace(" | ", " or ")
    return parameter.name, types, words, values
