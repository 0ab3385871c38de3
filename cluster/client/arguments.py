"""Checks the types of a client's arguments where they are given, so that the error names the argument.

`append("text")` would otherwise fail far from its caller, among the appends of others that it travels with, and a put
without a value would be a delete. Both clients and the requests are decorated with it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)
M = TypeVar("M", bound=Callable[..., Any])

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "bytes": (bytes, bytearray),
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bool": (bool,),
    "None": (type(None),),
}
_PLACED: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_ArgumentCheck = tuple[
    str, tuple[type, ...], str
]  # an argument's name, the types that it takes, and how they are called


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """The function; called with an argument of another type than its annotation, it raises TypeError. Only annotations
    of the plain types in `_TYPES` are checked."""
    parameters = inspect.signature(function).parameters
    by_name = {name: check for name, each in parameters.items() if (check := _check(name, each.annotation))[1]}
    by_place = [_check(name, each.annotation) for name, each in parameters.items() if each.kind in _PLACED]
    if not by_name:
        return function

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for check, value in zip(by_place, args, strict=False):
            if check[1] and type(value) not in check[1]:
                require(value, *check)
        for name, value in kwargs.items():
            if name in by_name and type(value) not in by_name[name][1]:
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


def require(value: object, name: str, types: tuple[type, ...], words: str) -> None:
    """Raises TypeError unless the value is of one of the types; a bool is no number."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError(f"{name} is {type(value).__name__}: give {words}")


def require_bytes(value: object, name: str, *, optional: bool = False) -> None:
    """The same of a value that may be bytes, or None if it is optional."""
    if type(value) is not bytes and not (optional and value is None):
        require(value, name, _TYPES["bytes"], "bytes or None" if optional else "bytes")


def _check(name: str, annotation: Any) -> _ArgumentCheck:
    words = annotation.split(" | ") if isinstance(annotation, str) else []
    if not words or any(word not in _TYPES for word in words):
        return name, (), ""
    return name, tuple(kind for word in words for kind in _TYPES[word]), " or ".join(words)
