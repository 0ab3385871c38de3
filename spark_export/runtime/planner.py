"""Forks the process that plans each streaming query from one that has imported everything already.

Spark starts a new Python process for each streaming query. Its imports take half of the time of a query over few
records. `session()` starts one process beforehand (`python -m` of this module), and gives Spark a script in place of
Python. To plan a query, the script runs `planner_client`, which asks that process for a fork. For anything else, and
where that process is gone, the script runs Python.

The process ends with the driver, whose pipe it reads. A planner ends with its client, which the JVM may kill.
"""

import atexit
import gc
import json
import os
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final, NoReturn

from raftlog.spark_export.runtime import java, links, planner_client

MODULE: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""What Spark runs to plan a streaming query, by `python -m`."""
SOCKET: Final = "RAFTLOG_PLANNER"
"""Names the variable that has the path of the socket, for the script."""

_SOURCE: Final = tuple(f"raftlog.spark_export.source.{name}" for name in ("source", "views", "stream"))
_PATH_BYTES_MAX: Final = 107  # of a Unix socket, in the kernel
_MESSAGE_BYTES: Final = 64 << 10  # read at once; an environment has some kilobytes
_ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
_END_S: Final = 5.0  # longest wait for the process at the driver's end
_SCRIPT: Final = """#!/bin/sh
if [ "$2" = {module} ] && [ -S "${socket}" ]; then
    exec {python} -I -S {client} "${socket}" {python} "$@"
fi
exec {python} "$@"
"""


def python() -> str:
    """What Spark shall run as Python; it needs the variable SOCKET, which is set. This very Python if there is no
    folder for the script, and on macOS, where a fork may not use libraries that were loaded before it."""
    if sys.platform != "linux":
        return sys.executable
    script = _SCRIPT.format(
        module=MODULE, socket=SOCKET, python=shlex.quote(sys.executable), client=shlex.quote(planner_client.__file__)
    )

    def fill(folder: Path) -> None:
        (folder / "python").write_text(script)
        (folder / "python").chmod(0o755)

    try:
        made = links.made(java.cache(), "python", script, fill) / "python"
        os.environ[SOCKET] = _socket()
    except OSError:
        return sys.executable
    return str(made) if os.access(made, os.X_OK) else sys.executable  # a file system may run no programs


@cache
def _socket() -> str:
    """This driver's, in a folder that only its user can enter. Raises OSError."""
    folder = Path(tempfile.mkdtemp(prefix="raftlog-planner-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = str(folder / "socket")
    if len(os.fsencode(path)) > _PATH_BYTES_MAX:
        raise OSError(f"{path} is too long for a socket")
    return path


@cache
def start() -> None:
    """Starts the process that forks, once, after `python`. The session is there by then, and does not wait for it."""
    options = ("-u", "-W", "ignore::DeprecationWarning")  # since Python 3.12 of forks beside threads: Arrow's
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # and none of numpy's, which nothing here needs
    process = subprocess.Popen(
        [sys.executable, *options, "-m", __name__, _socket()], stdin=subprocess.PIPE, env=environment
    )

    def end() -> None:
        assert process.stdin is not None
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):  # it is still importing, and will end behind that
            process.wait(_END_S)

    atexit.register(end)


def main(path: Path) -> None:
    """Forks a planner for each client, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the driver, too, and with it this process
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system removes ended planners
    for ends in _ENDING:
        signal.signal(ends, lambda *_: sys.exit())  # its folder is removed then, too
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            for name in (MODULE, *_SOURCE):
                import_module(name)
            del sys.modules[MODULE]  # it will be run, not imported
            gc.collect()
            gc.freeze()
            while sys.stdin.fileno() not in select.select([sys.stdin.fileno(), listener], [], [])[0]:
                client, _ = listener.accept()
                with client:
                    if os.fork() == 0:
                        listener.close()
                        _plan(client)
    finally:
        shutil.rmtree(path.parent, ignore_errors=True)


def _plan(client: socket.socket) -> NoReturn:
    """Runs what Spark would have run, with the client's standard files, environment and folder. Never returns into the
    code that forked."""
    code = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for each in (signal.SIGCHLD, *_ENDING):
            signal.signal(each, signal.SIG_DFL)
        message, files, _, _ = socket.recv_fds(client, _MESSAGE_BYTES, 3)
        while not message.endswith(b"\n"):
            message += client.recv(_MESSAGE_BYTES) or b"\n"
        environment, folder, arguments = json.loads(message)
        for place, file in enumerate(files):
            os.dup2(file, place)
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)
        sys.argv = arguments[1:]  # without -m; the first is then replaced
        threading.Thread(target=_end_with, args=(client,), daemon=True).start()
        runpy.run_module(MODULE, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit:
        pass  # Spark's module has sent the error to the JVM
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _end_with(client: socket.socket) -> None:
    """Ends this process when the client is gone."""
    client.recv(1)
    os._exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
