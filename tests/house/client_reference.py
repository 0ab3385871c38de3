"""Writes docs/python.md, the reference of the Python client, from its docstrings.

`make fix` runs it. tests/house/test_client_reference.py compares the page, and wants a docstring of each public name.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any, Final

import raftlog
from tests.house.rules import ROOT

PAGE: Final = ROOT / "docs" / "python.md"
MODULES: Final = {
    "raftlog": raftlog,
    "raftlog.sources": raftlog.sources,
    "raftlog.sinks": raftlog.sinks,
    "raftlog.arrow": raftlog.arrow,
}
PAIRS: Final = (("SyncClient", "Client"), ("SyncConsumer", "Consumer"))
"""The blocking and the asyncio form of the same class."""
HEAD: Final = """# The Python client

This page lists every public name, from the docstrings (`make fix` writes it). `SyncClient` blocks, and any number of
threads may use it. `Client` is for asyncio: its methods have the same arguments, and are awaited or iterated with
`async for`. Where they differ, both stand here.

Keys and values are bytes. A value that is JSON is written with `json.dumps(value).encode()`. It is read with
`item.json()` or `item.json(orjson.loads)`, also from a record and a change. A call with a wrong argument raises
TypeError or ValueError, which names argument and value, and sends nothing.

```python
from raftlog import SyncClient

with SyncClient("http://127.0.0.1:7001") as client:
    client.put(b"user/1", b'{"name": "Ada"}')
    for item in client.range(prefix=b"user/"):
        print(item.key, item.json()["name"])
```

In a program with OpenTelemetry, requests under an active span carry its `traceparent`; nothing else is needed. Where
several calls go in one request, it is that of the first call with a span ([traces](operations/watch.md#traces)).
"""


def methods_of(kind: type) -> list[tuple[str, Any]]:
    """The public methods and properties that the class, or a base of raftlog, defines."""
    own = [base for base in reversed(kind.__mro__) if base.__module__.startswith("raftlog")]
    found = {name: each for base in own for name, each in vars(base).items() if not name.startswith("_")}
    return [(name, each) for name, each in found.items() if callable(each) or isinstance(each, property)]


def text_of(thing: Any) -> str:
    """Its docstring on one line, without the indented examples."""
    lines = (inspect.getdoc(thing) or "").splitlines()
    return " ".join(" ".join(line for line in lines if not line.startswith("    ")).split())


class _Hidden:
    """The default of a parameter that no one can type."""

    def __repr__(self) -> str:
        return "…"


def signature_of(name: str, thing: Any) -> str:
    """How it is called, without annotations of arguments, which would double its length."""
    if isinstance(thing, property):
        return name
    signature = inspect.signature(thing)
    shown = [
        each.replace(annotation=each.empty, default=_Hidden() if repr(each.default).startswith("<f") else each.default)
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    told = str(signature.replace(parameters=shown, return_annotation=signature.empty))
    returned = signature.return_annotation
    returned = str(getattr(returned, "__name__", returned))
    if returned.startswith("ApiRequest["):
        returned = returned.removeprefix("ApiRequest[").removesuffix("]")
    return name + told + ("" if inspect.isclass(thing) else f" → {returned.rpartition('.')[2]}")


def described(kind: type, other: type | None = None) -> Iterator[str]:
    """The methods of a class; of a pair also what the other one has or says besides."""
    named = f"`{other.__name__}`" if other is not None else ""
    own, others = dict(methods_of(kind)), dict(methods_of(other)) if other is not None else {}
    for name, each in own.items():
        text, more = text_of(each), text_of(others[name]) if name in others else ""
        besides = more.removeprefix(text).strip()
        yield f"- `{signature_of(name, each)}`: {text}" + (f" In {named}: {besides}" if besides else "")
    for name, each in others.items():
        if name not in own:
            yield f"- `{signature_of(name, each)}` ({named} alone): {text_of(each)}"


def entry(name: str, thing: Any) -> list[str]:
    """The lines of one public name: an item of a list, or a paragraph with a list of its methods."""
    other = next((getattr(raftlog, asyncio) for blocking, asyncio in PAIRS if blocking == name), None)
    if hasattr(thing, "__origin__"):  # a Literal
        return [f"- **{name}**: one of {', '.join(map(repr, thing.__args__))}"]
    if inspect.isclass(thing) and issubclass(thing, Exception):
        return [f"- **{name}** (a kind of {thing.__base__.__name__ if thing.__base__ else ''}): {text_of(thing)}"]
    if not callable(thing):
        return [f"- **{name}**: a {type(thing).__name__}"]
    is_made = not (inspect.isclass(thing) and (issubclass(thing, Enum) or getattr(thing, "_is_protocol", False)))
    head = f"**{name}**" + (f" `{signature_of(name, thing)}`" if is_made else "")
    if other is not None:
        head += f", **{other.__name__}** `{signature_of(other.__name__, other)}`"
    methods = [*described(thing, other)] if inspect.isclass(thing) and not issubclass(thing, Enum) else []
    text = f"{head}: {text_of(other or thing)}"
    return ["", text, "", *methods, ""] if methods else [f"- {text}"]


def page() -> str:
    """The page."""
    lines = [HEAD]
    firsts, seconds = zip(*PAIRS, strict=True)
    for name, module in MODULES.items():
        names = [each for each in sorted(module.__all__) if each not in (*firsts, *seconds)]
        if module is raftlog:
            names = [*firsts, *names]
        else:
            lines += ["", f"## {name}", "", f"`from raftlog import {name.partition('.')[2]}`. {text_of(module)}", ""]
            names = [each for each in names if each not in raftlog.__all__]
        for each in names:
            lines += entry(each, getattr(module, each))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
