"""Arguments of a wrong type: an error that names the argument, at the call, from every method of both clients."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from raftlog.cluster.client import requests
from raftlog.cluster.client.aio.client import Client
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.new_records import NewRecord
from tests.cluster.fake_node import serve

PLAIN = {"bytes", "int", "str", "float", "bool", "bytes | None", "int | None", "float | None", "str | None"}


class Wrong:
    """Of no type that a client takes."""


def cases(owner: Any, names: list[str]) -> list[Any]:
    """Each plain argument of each public function, with what its error says."""
    found = []
    for name in names:
        function = getattr(owner, name)
        for argument, parameter in inspect.signature(function).parameters.items():
            if parameter.annotation in PLAIN:
                says = f"{argument} is Wrong: give {parameter.annotation.replace(' | ', ' or ')}"
                found.append(pytest.param(owner, name, argument, says, id=f"{owner.__name__}.{name}({argument})"))
    return found


def public(owner: Any) -> list[str]:
    """Names of its methods, or of a module's own functions."""
    return [
        name
        for name, each in vars(owner).items()
        if inspect.isfunction(each)
        and not name.startswith("_")
        and (owner is not requests or each.__module__ == requests.__name__)
    ]


CASES = cases(Client, public(Client)) + cases(SyncClient, public(SyncClient))
CASES += cases(requests, [name for name in public(requests) if name not in ("append", "write_batch", "check_record")])


@pytest.mark.parametrize(("owner", "name", "argument", "says"), CASES)
def test_every_plain_argument_is_checked_by_its_name(owner: Any, name: str, argument: str, says: str) -> None:
    """Of every public method and request, found by their annotations: a new one is checked as well or fails here."""
    given = [None] if "self" in inspect.signature(getattr(owner, name)).parameters else []
    with pytest.raises(TypeError, match=f"^{says}$"):
        getattr(owner, name)(*given, **{argument: Wrong()})


def test_the_list_of_checked_arguments_is_not_empty() -> None:
    """The list above is not empty by mistake."""
    told = [str(each.id) for each in CASES]
    assert {"Client.append(value)", "SyncClient.append(value)", "Client.put(value)", "SyncClient.get(key)"} <= set(told)
    assert len(told) > 60


async def test_text_in_place_of_bytes_is_refused_by_name() -> None:
    """The commonest mistake, and a put without a value, which is no delete. Other appends go on."""
    async with serve() as served, Client(served.url) as client:
        text: Any = "text"
        with pytest.raises(TypeError, match=r"^value is str: give bytes$"):
            await client.append(text)
        with pytest.raises(TypeError, match=r"^key is str: give bytes or None$"):
            await client.append(b"v", key=text)
        with pytest.raises(TypeError, match=r"^headers: the value of 'h' is str: give bytes$"):
            await client.append(b"v", headers=[("h", text)])
        with pytest.raises(TypeError, match=r"^records\[1\].value is str: give bytes or None$"):
            await client.append_many([NewRecord(b"a"), NewRecord(text)])
        with pytest.raises(TypeError, match=r"^records\[0\] is str: give NewRecord$"):
            await client.append_many([text, text])
        await client.put(b"k", b"v")
        nothing: Any = None
        with pytest.raises(TypeError, match=r"^value is NoneType: give bytes$"):
            await client.put(b"k", nothing)
        wrong: Any = True
        with pytest.raises(TypeError, match=r"^if_revision is bool: give int or None$"):
            await client.put(b"k", b"w", if_revision=wrong)
        found = await client.get(b"k")
        assert found is not None
        assert found.value == b"v"
        assert (await client.append(b"good")).count == 1
