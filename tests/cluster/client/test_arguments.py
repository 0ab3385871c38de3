"""Arguments of a wrong type: an error that names the argument, at the call, from every method of both clients."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import pytest

from raftlog.cluster.api.values import NUMBER_MAX
from raftlog.cluster.client import requests
from raftlog.cluster.client.aio.client import Client
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.consumers import Consumer, SyncConsumer
from raftlog.cluster.client.decisions import Policy
from raftlog.cluster.client.new_records import NewRecord
from tests.cluster.fake_node import serve


class Wrong:
    """Of no type that a client takes."""


def cases(owner: Any, *left_out: str) -> list[Any]:
    """Each argument of each public method, or of a module's own functions: a value that is wrong, and what its error
    says. Consistency and Literals are texts, of which each has its list."""
    found = []
    for name, function in inspect.getmembers(owner, inspect.isfunction):
        if name.startswith("_") or name in left_out or (owner is requests and function.__module__ != requests.__name__):
            continue
        for argument, parameter in inspect.signature(function).parameters.items():
            words = str(parameter.annotation).split(" | ")
            for kind, value, says in WRONG:
                if argument != "self" and kind in ("", *words):
                    shown = f"{owner.__name__}.{name}({argument})" + (f"={value}" if kind else "")
                    found.append(pytest.param(function, argument, value, says, id=shown))
    return found


WRONG = (
    ("", Wrong(), "is Wrong <.*>: give [^ ]+"),
    ("int", -1, f"is -1: give a number from 0 to {NUMBER_MAX}"),
    ("float", math.nan, "is nan: give seconds, at most [0-9]+"),
    ("float", math.inf, "is inf: give seconds, at most [0-9]+"),
    ("Consistency", "eventual", "is 'eventual': give 'linearizable' or 'stale'"),
)
CASES = [each for owner in (Client, SyncClient, Consumer, SyncConsumer, Policy) for each in cases(owner)]
CASES += cases(requests, "write_batch")
assert len(CASES) > 300  # and not empty by mistake


@pytest.mark.parametrize(("function", "argument", "value", "says"), CASES)
def test_every_argument_is_checked_by_its_name(function: Any, argument: str, value: Any, says: str) -> None:
    """Of every public method and request, found by their annotations: a new one is checked as well or fails here."""
    given = [None] if "self" in inspect.signature(function).parameters else []
    with pytest.raises((TypeError, ValueError), match=f"^{argument} {says}"):
        function(*given, **{argument: value})


@pytest.mark.parametrize("client", [Client, SyncClient])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"endpoints": None}, "endpoints is None: give str or Sequence[str]"),
        ({"endpoints": [7]}, "the URL of a node is int 7: give str"),
        ({"dial": "text"}, "dial is str 'text': give Mapping[int, str] or None"),
        ({"deadline_s": "1"}, "deadline_s is str '1': give float"),
        ({"policy": {}}, "policy is dict {}: give Policy or None"),
    ],
)
def test_a_client_is_not_made_of_wrong_arguments(client: Any, given: dict[str, Any], says: str) -> None:
    """Nor does the error come with the first request."""
    with pytest.raises(TypeError, match=f"^{re.escape(says)}$"):
        client(**{"endpoints": "http://127.0.0.1:1"} | given)


async def test_text_in_place_of_bytes_is_refused_by_name() -> None:
    """The commonest mistake, and a put without a value, which is no delete. Other appends go on."""
    async with serve() as served, Client(served.url) as client:
        await client.put(b"k", b"v")
        text: Any = "text"
        nothing: Any = None
        for call, says in (
            (lambda: client.append(text), "value is str 'text': give bytes"),
            (lambda: client.append(b"v", key=text), "key is str 'text': give bytes or None"),
            (lambda: client.append(b"v", headers=[("h", text)]), "headers: the value of 'h' is str 'text': give bytes"),
            (lambda: client.append(b"v", headers=[text]), "headers: 'text' is no pair: give (str, bytes)"),
            (
                lambda: client.append_many([NewRecord(b""), NewRecord(text)]),
                "records[1].value is str 'text': give bytes or None",
            ),
            (lambda: client.append_many([text, text]), "records[0] is str 'text': give NewRecord"),
            (lambda: client.put(b"k", nothing), "value is None: give bytes"),
            (lambda: client.put(b"k", b"w", if_revision=True), "if_revision is bool True: give int or None"),
        ):
            with pytest.raises(TypeError, match=f"^{re.escape(says)}$"):
                await call()
        found = await client.get(b"k")
        assert found is not None
        assert found.value == b"v"
        assert (await client.append(b"good")).count == 1
