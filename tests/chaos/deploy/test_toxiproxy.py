"""The real Toxiproxy server does to connections what the harness relies on, and a hanging call is cut off."""

import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from raftlog.chaos.deploy.processes import Guard
from raftlog.chaos.deploy.toxiproxy import Toxiproxy, ToxiproxyError, ToxiproxyHungError
from raftlog.cluster.node.local_cluster import wait_stopped
from tests.support import HANG_S, free_port, free_ports

pytestmark = [pytest.mark.serial, pytest.mark.toxiproxy]

SHORT_S = 0.15  # how long silence is listened to


@pytest.fixture
def guard() -> Iterator[Guard]:
    with Guard() as owner:
        yield owner


@pytest.fixture
def proxies(guard: Guard, toxiproxy_path: Path, tmp_path: Path) -> Iterator[Toxiproxy]:
    with Toxiproxy(guard, free_port(), tmp_path) as server:
        yield server


class Echo:
    """A server that keeps what it got and sends it back."""

    def __init__(self) -> None:
        self.got = bytearray()
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            while data := connection.recv(4096):
                self.got += data
                connection.sendall(data)
        except OSError:
            return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join(10)
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            connection.close()
        for thread in self._threads:
            thread.join(10)


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def through(proxies: Toxiproxy, echo: Echo) -> int:
    """The port of a proxy, named `p`, in front of the echo server."""
    port = free_port()
    proxies.add_proxy("p", listen=f"127.0.0.1:{port}", upstream=echo.address)
    return port


def _dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=HANG_S)


def _said(connection: socket.socket, words: bytes) -> bytes:
    connection.sendall(words)
    return connection.recv(100)


def _is_silent(connection: socket.socket) -> bool:
    connection.settimeout(SHORT_S)
    try:
        connection.recv(1)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(HANG_S)
    return False


def test_bytes_pass_both_ways(through: int) -> None:
    """Without a toxic a proxy is a wire."""
    with _dial(through) as connection:
        assert _said(connection, b"hello") == b"hello"


def test_upstream_cut_swallows_requests(proxies: Toxiproxy, through: int, echo: Echo) -> None:
    """Cut upstream: nothing arrives, and no side gets an error; the connection is closed at the heal and the bytes stay
    lost.
    """
    with _dial(through) as connection:
        assert _said(connection, b"before") == b"before"
        proxies.add_toxic("p", "cut", "timeout", "upstream", {"timeout": 0})
        connection.sendall(b"swallowed")
        assert _is_silent(connection)
        proxies.remove_toxic("p", "cut")
        assert connection.recv(100) == b""
    assert bytes(echo.got) == b"before"
    with _dial(through) as connection:
        assert _said(connection, b"after") == b"after"


def test_downstream_cut_swallows_answers(proxies: Toxiproxy, through: int, echo: Echo) -> None:
    """Cut downstream: the request arrives and its answer does not, the fault behind every unknown outcome."""
    proxies.add_toxic("p", "cut", "timeout", "downstream", {"timeout": 0})
    with _dial(through) as connection:
        connection.sendall(b"request")
        assert _is_silent(connection)
    assert bytes(echo.got) == b"request"


def test_bandwidth_zero_delivers_late(proxies: Toxiproxy, through: int, echo: Echo) -> None:
    """Held bytes all arrive once the toxic is gone: messages of an old term after an election."""
    with _dial(through) as connection:
        assert _said(connection, b"before") == b"before"
        proxies.add_toxic("p", "hold", "bandwidth", "upstream", {"rate": 0})
        connection.sendall(b"late")
        assert _is_silent(connection)
        assert bytes(echo.got) == b"before"
        proxies.remove_toxic("p", "hold")
        assert connection.recv(100) == b"late"


def test_disabled_refuses_and_drops(proxies: Toxiproxy, through: int) -> None:
    """A disabled proxy drops the connection it has and refuses others; enabled again it listens on the same port."""
    with _dial(through) as connection:
        assert _said(connection, b"x") == b"x"
        proxies.disable("p")
        assert connection.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            _dial(through)
    proxies.enable("p")
    with _dial(through) as connection:
        assert _said(connection, b"y") == b"y"


def test_reset_heals_everything(proxies: Toxiproxy, through: int, echo: Echo) -> None:
    """One call takes away all toxics and enables all proxies; the server's own list is the proof of both."""
    proxies.add_proxy("q", listen=f"127.0.0.1:{free_port()}", upstream=echo.address)
    proxies.add_toxic("p", "slow", "latency", "downstream", {"latency": 1, "jitter": 0})
    proxies.add_toxic("p", "cut", "timeout", "upstream", {"timeout": 0})
    proxies.disable("q")
    assert proxies.toxics() == {"p": ["cut", "slow"], "q": ["disabled"]}
    proxies.reset()
    assert proxies.toxics() == {"p": [], "q": []}


def test_toxiproxy_refusals_name_the_fault(proxies: Toxiproxy, through: int, echo: Echo) -> None:
    """A taken port, a name used twice, an unknown proxy, toxic or kind: each an error that says which."""
    with pytest.raises(ToxiproxyError, match=r"proxy q: Toxiproxy cannot listen on 127\.0\.0\.1:\d+"):
        proxies.add_proxy("q", listen=echo.address, upstream=echo.address)
    with pytest.raises(ToxiproxyError, match=r"refused to add proxy p: .*already exists"):
        proxies.add_proxy("p", listen=f"127.0.0.1:{free_port()}", upstream=echo.address)
    with pytest.raises(ToxiproxyError, match="there is no proxy z; there are: p"):
        proxies.disable("z")
    proxies.add_toxic("p", "cut", "timeout", "upstream", {"timeout": 0})
    with pytest.raises(ToxiproxyError, match=r"refused to add toxic cut to p: .*exists"):
        proxies.add_toxic("p", "cut", "timeout", "upstream", {"timeout": 0})
    with pytest.raises(ToxiproxyError, match=r"refused to remove toxic slow from p: .*not found"):
        proxies.remove_toxic("p", "slow")
    with pytest.raises(ToxiproxyError, match=r"refused to add toxic rain to p: .*invalid toxic type"):
        proxies.add_toxic("p", "rain", "rain", "upstream")


def test_a_second_server_is_refused(proxies: Toxiproxy, guard: Guard, tmp_path: Path) -> None:
    """toxiproxy-python would silently drive the newer one, so the second is refused."""
    with pytest.raises(ToxiproxyError, match="drives a Toxiproxy server already"):
        Toxiproxy(guard, free_port(), tmp_path)


def test_an_occupied_proxy_port_is_an_error(guard: Guard, toxiproxy_path: Path, echo: Echo, tmp_path: Path) -> None:
    """Somebody else's port is named, not taken for a server that came up; afterwards another one starts."""
    port = int(echo.address.rpartition(":")[2])
    with pytest.raises(ToxiproxyError, match=f"127.0.0.1:{port} already"):
        Toxiproxy(guard, port, tmp_path)
    Toxiproxy(guard, free_port(), tmp_path).close()


def test_a_hanging_server_is_cut_off(proxies: Toxiproxy, through: int) -> None:
    """A stopped server never answers and toxiproxy-python would wait for ever: the call ends with an error that
    says that the outcome is not known."""
    proxies.call_s = 0.2
    proxies.process.send_signal(signal.SIGSTOP)
    assert wait_stopped(proxies.process.pid, 30)  # until then another thread may answer
    with pytest.raises(ToxiproxyHungError, match=r"did not answer within 0\.2 s to: disable p"):
        proxies.disable("p")
    proxies.process.send_signal(signal.SIGCONT)


def test_a_lost_toxiproxy_server_is_an_error(proxies: Toxiproxy, through: int) -> None:
    """A killed server is an error with the end of its log, not a hang."""
    proxies.process.kill()
    proxies.process.wait()
    with pytest.raises(ToxiproxyError, match="was lost at: reset"):
        proxies.reset()


def test_populating_is_quick_enough_for_seven_nodes(proxies: Toxiproxy, echo: Echo) -> None:
    """49 proxies, what seven nodes need, stand and answer by name."""
    for number, port in enumerate(free_ports(49)):
        proxies.add_proxy(f"n{number}", listen=f"127.0.0.1:{port}", upstream=echo.address)
    assert len(proxies.toxics()) == 49
