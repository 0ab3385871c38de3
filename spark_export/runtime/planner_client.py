"""Asks for a fork in place of a new Python process, and stays until the fork has ended (`planner`).

A script, with few imports: it runs for each streaming query, as `planner_client SOCKET PYTHON ARGUMENTS…`. If the
socket does not answer, it becomes the Python that was asked for.
"""

import json
import os
import socket
import sys


def main(path: str, python: str, arguments: list[str]) -> None:
    """Sends what a new process would have got: environment, folder, arguments, standard files."""
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(path)
            message = json.dumps([dict(os.environ), os.getcwd(), arguments]).encode() + b"\n"
            sent = socket.send_fds(server, [message], [0, 1, 2])
            server.sendall(message[sent:])
        except OSError:
            os.execv(python, [python, *arguments])
        server.recv(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
