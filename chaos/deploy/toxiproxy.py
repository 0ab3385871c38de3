"""Drives one real Toxiproxy server through toxiproxy-python, with a watchdog around its missing time-outs.

The harness relies on three behaviours of the server (measured on 2.12.0). `timeout` with 0 swallows bytes silently, and
closes the connection when it is removed. A disabled proxy refuses connections and drops existing ones. `bandwidth` with
rate 0 holds bytes back and delivers all of them later. A cut of one direction is `timeout` 0 on one stream.

Every method blocks for some milliseconds (from asyncio: `await asyncio.to_thread(…)`) and ends after `CALL_S` at the
latest. toxiproxy-python keeps the server's address in a class. So a process can drive only one server at a time.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, TypeVar

import toxiproxy
from toxiproxy.api import APIConsumer
from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

from raftlog.chaos.deploy import toxiproxy_server
from raftlog.chaos.deploy.processes import Guard

T = TypeVar("T")
Stream = Literal["upstream", "downstream"]
"""upstream: from the dialler to the listener; downstream: back."""

CALL_S: Final = 20.0
"""An add and a remove take 2 ms. But before the server removes a toxic, it waits 5 s for each piece of data that the
other end does not take, as where that process was stopped. It cuts its API calls at 25 s."""
START_S: Final = 10.0
_TAIL_BYTES: Final = 4_096


class ToxiproxyError(RuntimeError):
    """The server refused, or gave an unexpected answer; the message names the proxy and the fix."""


class ToxiproxyHungError(ToxiproxyError):
    """The server did not answer in time: what the call was to do may or may not have happened."""


class Toxiproxy:
    """A running server with its proxies; a context manager that ends it."""

    _current: ClassVar[Toxiproxy | None] = None

    def __init__(self, guard: Guard, port: int, folder: Path) -> None:
        """Starts the server with its API on `port` of 127.0.0.1 and its log in `folder`.

        Raises ToxiproxyNotFoundError without the server's executable, ToxiproxyError when it does not come up.
        """
        if Toxiproxy._current is not None:
            raise ToxiproxyError("this process drives a Toxiproxy server already; close that one first")
        path = toxiproxy_server.server_path()
        _never_through_a_web_proxy()
        self.port = port
        self.call_s = CALL_S
        self._api = toxiproxy.Toxiproxy()
        self._api.update_api_consumer("127.0.0.1", port)
        if self._api.running():
            raise ToxiproxyError(f"somebody listens on 127.0.0.1:{port} already: give Toxiproxy another port")
        self._proxies: dict[str, toxiproxy.Proxy] = {}
        self._log = folder / "toxiproxy.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [path, "-host", "127.0.0.1", "-port", str(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches the harness alone
            )
        guard.watch(self.process.pid)
        Toxiproxy._current = self
        try:
            self._wait_until_up()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Toxiproxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server, and with it every connection through it."""
        self.process.kill()
        self.process.wait()
        if Toxiproxy._current is self:
            Toxiproxy._current = None

    def add_proxy(self, name: str, *, listen: str, upstream: str) -> None:
        """A new proxy: what dials `listen` reaches `upstream` (both host:port)."""
        try:
            self._proxies[name] = self._call(
                f"add proxy {name}", lambda: self._api.create(upstream=upstream, name=name, listen=listen)
            )
        except KeyError:  # what toxiproxy-python makes of the server's 500
            raise ToxiproxyError(f"proxy {name}: Toxiproxy cannot listen on {listen}: is the port taken?") from None

    def add_toxic(
        self,
        proxy: str,
        name: str,
        kind: str,
        stream: Stream,
        attributes: dict[str, int] | None = None,
        toxicity: float = 1.0,
    ) -> None:
        """Puts a toxic on one direction of a proxy. Raises ToxiproxyError when it has one of that name."""
        self._call(
            f"add toxic {name} to {proxy}",
            lambda: self._proxy(proxy).add_toxic(
                type=kind, stream=stream, name=name, toxicity=toxicity, attributes=attributes or {}
            ),
        )

    def remove_toxic(self, proxy: str, name: str) -> None:
        """Takes a toxic away. Raises ToxiproxyError when there is none of that name."""
        self._call(f"remove toxic {name} from {proxy}", lambda: self._proxy(proxy).destroy_toxic(name))

    def disable(self, proxy: str) -> None:
        """Drops the proxy's connections and refuses new ones."""
        self._call(f"disable {proxy}", self._proxy(proxy).disable)

    def enable(self, proxy: str) -> None:
        """Takes connections again."""
        self._call(f"enable {proxy}", self._proxy(proxy).enable)

    def drop(self, proxies: Sequence[str], name: str) -> None:
        """Ends the connections of all these proxies at the same moment, by concurrent requests; no dial is refused.

        The server closes a connection when a `timeout` toxic is removed from it. The toxic, `name`, swallows some
        milliseconds of bytes before. Raises ToxiproxyError; some of the toxics may be left then.
        """
        with ThreadPoolExecutor(len(proxies), "drop") as pool:
            list(pool.map(lambda proxy: self.add_toxic(proxy, name, "timeout", "upstream", {"timeout": 0}), proxies))
            list(pool.map(lambda proxy: self.remove_toxic(proxy, name), proxies))

    def toxics(self) -> dict[str, list[str]]:
        """Names of the toxics of each proxy, as the server lists them; also `disabled` for a disabled proxy."""
        proxies = self._call("list proxies", lambda: APIConsumer.get("/proxies").json())  # all toxics in one answer
        return {
            name: ([] if proxy["enabled"] else ["disabled"]) + sorted(toxic["name"] for toxic in proxy["toxics"])
            for name, proxy in sorted(proxies.items())
        }

    def reset(self) -> None:
        """Enables every proxy and takes every toxic away."""
        self._call("reset", self._api.reset)

    def _proxy(self, name: str) -> toxiproxy.Proxy:
        try:
            return self._proxies[name]
        except KeyError:
            known = ", ".join(self._proxies) or "none"
            raise ToxiproxyError(f"there is no proxy {name}; there are: {known}") from None

    def _call(self, what: str, call: Callable[[], T]) -> T:
        """Runs a blocking call of toxiproxy-python, at most for `call_s`.

        The thread of a hanging call is left behind. It ends with the server, and a daemon thread does not delay the
        exit.
        """
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=run, name=f"toxiproxy: {what}", daemon=True).start()
        try:
            return answer.result(self.call_s)
        except TimeoutError:
            raise ToxiproxyHungError(
                f"Toxiproxy did not answer within {self.call_s:g} s to: {what}\n{self._tail()}"
            ) from None
        except (ProxyExists, NotFound, InvalidToxic) as error:
            reason: Any = error.args[0] if error.args else ""
            shown = reason.decode("utf-8", "replace").strip() if isinstance(reason, bytes) else str(reason)
            raise ToxiproxyError(f"Toxiproxy refused to {what}: {shown}") from error
        except OSError as error:  # requests' errors are some
            raise ToxiproxyError(f"Toxiproxy was lost at: {what}: {error}\n{self._tail()}") from error

    def _wait_until_up(self) -> None:
        end = time.monotonic() + START_S
        while not self._call("connect", self._api.running):
            if self.process.poll() is not None or time.monotonic() > end:
                raise ToxiproxyError(f"Toxiproxy did not come up on port {self.port}\n{self._tail()}")
            time.sleep(0.005)

    def _tail(self) -> str:
        """The end of the server's log, for a message."""
        return f"--- end of {self._log.name}\n{self._log.read_bytes()[-_TAIL_BYTES:].decode('utf-8', 'replace')}"


def _never_through_a_web_proxy() -> None:
    """requests obeys HTTP_PROXY; for loopback addresses it must not."""
    for name in ("NO_PROXY", "no_proxy"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        if "127.0.0.1" not in hosts:
            os.environ[name] = ",".join([*hosts, "127.0.0.1"])
