"""Defines the command that packs what somebody else needs to help with a cluster, into one archive without secrets."""

from __future__ import annotations

import io
import os
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from raftlog.cluster.cli.admin import ask_all
from raftlog.cluster.cli.disk import as_object
from raftlog.cluster.cli.explain import explain_leader
from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit
from raftlog.cluster.cli.frame.output import bar, view
from raftlog.cluster.client import requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.decisions import normal_url
from raftlog.cluster.client.errors import ClientError
from raftlog.cluster.config.settings import LoadedSettings, load_settings
from raftlog.cluster.files.errors import DiskError
from raftlog.cluster.runtime import build

commands = Commands()
register = commands.register
_debug = commands.group("debug")

BUNDLE: Final = view("file", "bytes", "troubles", raw="file")
ASK_S: Final = 5.0
"""Longest wait for one node, in seconds."""
LOG_BYTES_MAX: Final = 4 << 20
"""Of the newest lines of a node's log."""


class _Archive:
    """A tar.gz archive that is filled piece by piece, and what could not be had."""

    def __init__(self, tar: tarfile.TarFile, name: str) -> None:
        self._tar, self._name = tar, name
        self.troubles: list[str] = []

    def add(self, name: str, found: Any) -> None:
        """One file: bytes as they are, anything else as JSON."""
        data = found if isinstance(found, bytes) else msgspec.json.format(msgspec.json.encode(found), indent=1)
        entry = tarfile.TarInfo(f"{self._name}/{name}")
        entry.size, entry.mtime, entry.mode = len(data), int(time.time()), 0o600
        self._tar.addfile(entry, io.BytesIO(data))

    def try_to(self, name: str, find: Callable[[], Any]) -> None:
        """The file with what `find` returns, or the reason why there is none."""
        try:
            found = find()
        except (ClientError, DiskError, OSError) as error:
            self.troubles.append(f"{name}: {error}")
        else:
            self.add(name, found)


@_debug("bundle")
def bundle_command(
    cli: Cli,
    out: Annotated[
        Path | None, typer.Option("--out", help="The new archive; by default raftlog-debug-TIME.tar.gz.")
    ] = None,
    config: Annotated[
        list[Path] | None,
        typer.Option("--config", help="The settings file of a node on this machine; may be given again."),
    ] = None,
) -> None:
    """Pack status, explanations and metrics of all nodes, and settings, log and disk check of those on this machine.

    No key, value, token, password or private key is in it. A running node's disk is not checked. Look into the archive
    before you send it.
    """
    name = time.strftime("raftlog-debug-%Y%m%d-%H%M%S")
    file = out or Path(f"{name}.tar.gz")
    loaded = [load_settings(each, os.environ) for each in config or ()]
    try:
        with tarfile.open(file, "x:gz") as tar:
            archive = _Archive(tar, name)
            archive.add("about.json", {**build.facts(), "endpoints": cli.endpoints, "time": time.time()})
            _add_nodes(cli, archive)
            for each in loaded:
                _add_local(archive, each)
            archive.add("troubles.txt", "".join(f"{each}\n" for each in archive.troubles).encode())
    except OSError as error:
        raise CommandFailed(
            f"{file}: {error.strerror or error}", Exit.FAILURE, "Name another file with --out."
        ) from error
    cli.printer.one({"file": str(file), "bytes": file.stat().st_size, "troubles": len(archive.troubles)}, BUNDLE)


def _add_nodes(cli: Cli, archive: _Archive) -> None:
    """What the nodes say that can be reached."""
    urls = {normal_url(url) for url in cli.endpoints}

    def explain() -> Any:
        answer = explain_leader(cli)
        urls.update(normal_url(peer.url) for node in answer.nodes for peer in node.peers)
        return answer

    archive.try_to("explain.json", explain)
    for url, answer in ask_all(sorted(urls), _asked, ASK_S).items():
        if isinstance(answer, ClientError):
            archive.troubles.append(f"{url}: {answer}")
        else:
            node = answer["status.json"].node
            for name, found in answer.items():
                archive.add(f"nodes/{node}/{name}", found)


def _asked(client: SyncClient) -> dict[str, Any]:
    return {
        "status.json": client.status(),
        "members.json": client.members(),
        "metrics.txt": client.call(requests.metrics()),
    }


def _add_local(archive: _Archive, loaded: LoadedSettings) -> None:
    """What lies on this machine. Settings name files with secrets, and have none themselves."""
    folder = f"machine/{loaded.settings.node}"
    archive.add(f"{folder}/settings.json", {each.key: [each.value, each.origin] for each in loaded.origins})
    if loaded.settings.log.file:
        archive.try_to(f"{folder}/log.txt", lambda: _tail(loaded.folder / loaded.settings.log.file))
    archive.try_to(f"{folder}/files.json", lambda: _sizes(loaded.data))
    archive.try_to(f"{folder}/disk_check.json", lambda: _check(loaded.data))


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
        return file.read()


def _sizes(data: Path) -> dict[str, int]:
    return {str(path.relative_to(data)): path.stat().st_size for path in sorted(data.rglob("*")) if path.is_file()}


def _check(data: Path) -> dict[str, Any]:
    from raftlog.cluster.offline.check import check_folder

    with bar("checking the files of a stopped node") as progress:
        return as_object(check_folder(data, progress))
