"""Runs a page of commands on machines of their own: a shell for each, in namespaces of network, files and processes.

All machines hang on one bridge, which no address of the host reaches. Each has its own /etc, /opt and /var/lib, as
layers above those of this machine. What ends the shell ends every process of its machine. Stand-ins:

- `systemctl` starts and stops the ExecStart of a unit as the unit's user, and `journalctl` prints its output;
- `scp` copies between machines by their files;
- `raftlog` and /opt/raftlog are the program of this checkout, unless a folder is given that each machine has as /srv.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.house.rules import ROOT
from tests.support import hang_s

TOOLS: Final = ("ip", "unshare", "nsenter", "setpriv", "useradd", "runuser", "prometheus", "promtool")
PROMPT: Final = re.compile(r"(?P<machine>\w+)[$#] (?P<command>.*)")
SETUP: Final = r"""
mount --make-rprivate / && mount -t tmpfs rehearsal /mnt
for each in etc opt var/lib; do
    mkdir -p /mnt/$each.own /mnt/$each.work
    mount -t overlay rehearsal -o lowerdir=/$each,upperdir=/mnt/$each.own,workdir=/mnt/$each.work /$each
done
mkdir -p /var/lib/raftlog disk && mount --bind disk /var/lib/raftlog
hostname $NAME
rm -f /etc/resolv.conf; echo "nameserver $NAME_SERVER" > /etc/resolv.conf; echo "hosts: files dns" > /etc/nsswitch.conf
printf '127.0.0.1 localhost\n%s operator\n' "$NAME_SERVER" > /etc/hosts
printf 'passwd: files\ngroup: files\n' >> /etc/nsswitch.conf
mkdir -p /etc/systemd/system
[ -n "$SRV" ] && mount --bind "$SRV" /srv || { mkdir -p /opt/raftlog/bin && cp "$TOOLS/raftlog" /opt/raftlog/bin; }
ip link set lo up
PATH=$TOOLS:$PATH
"""
SYSTEMCTL: Final = r"""
name=${!#}; instance=${name#*@}; log=$HOME/$name.log
of() { sed -n "s|^$1=||p" "/etc/systemd/system/${name%%@*}@.service" | sed "s|%i|$instance|g; s|%S|/var/lib|g"; }
case $1 in
enable | start)
    cd "$(of WorkingDirectory)" && umask "$(of UMask)" || exit 1
    rm -f "$log.code"
    (
        setpriv --reuid "$(of User)" --regid "$(of Group)" --clear-groups $(of ExecStart) >> "$log" 2>&1 < /dev/null &
        echo $! > "$log.pid"; wait $!; echo $? > "$log.code"
    ) > /dev/null 2>&1 &
    ;;
stop) kill "$(cat "$log.pid")"; until [ -e "$log.code" ]; do sleep 0.1; done ;;
is-failed) [ -e "$log.code" ] && [ "$(cat "$log.code")" != 0 ] ;;
*) echo "systemctl $1: not rehearsed" >&2; exit 1 ;;
esac
"""
STAND_INS: Final = {
    "systemctl": f"#!/bin/bash\n{SYSTEMCTL}",
    "journalctl": '#!/bin/bash\n[ "$1 $3 $4 $5" = "-u -o cat -n1" ] && tail -n1 "$HOME/$2.log"\n',
    "scp": r"""#!/bin/bash
words=("$@"); to=${words[-1]}; unset "words[-1]"; name=${to#root@}
cp "${words[@]}" "${TOOLS%/*}/${name%%.*}/disk${to#*:/var/lib/raftlog}"
""",
    "raftlog": f'#!/bin/sh\nexec {sys.executable} -m raftlog.cluster.cli.main "$@"\n',
}


class Step(NamedTuple):
    """A command of a page: on which machine, and which lines it must print, in this order; `…` is any text."""

    line: int
    machine: str
    command: str
    printed: list[str]


def steps_of(text: str, first_line: int) -> list[Step]:
    """The commands of a block of `console`."""
    steps: list[Step] = []
    for number, line in enumerate(text.splitlines(), first_line):
        if found := PROMPT.fullmatch(line):
            steps.append(Step(number, found["machine"], found["command"], []))
        elif steps[-1].command.endswith("\\"):
            steps[-1] = steps[-1]._replace(command=f"{steps[-1].command}\n{line}")
        else:
            steps[-1].printed.append(line)
    return steps


def missing() -> str:
    """Why this system can have no such machines; empty if it can."""
    if os.geteuid():
        return "only root makes network namespaces and mounts"
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"no program {', '.join(lacking)}"
    tried = ["unshare", "-mnp", "--fork", "bash", "-ec", SETUP.partition("mkdir -p /var")[0]]
    for words in (tried, ["runuser", "-u", "nobody", "--", sys.executable, "-c", "import raftlog"]):
        done = subprocess.run(words, capture_output=True, text=True, timeout=hang_s(), check=False)
        if done.returncode:
            return f"{words[0]}: {done.stderr.strip()}"
    return ""


class Machine:
    """One, with the shell that its commands are typed into."""

    def __init__(self, name: str, folder: Path, name_server: str, srv: Path | None = None) -> None:
        self.name = name
        self.transcript: list[str] = []  # the steps that it took, with what they printed
        home = folder / name
        home.mkdir()
        own = {"NAME": name, "NAME_SERVER": name_server, "TOOLS": str(folder / "tools"), "HOME": str(home)}
        own["SRV"] = str(srv or "")
        self._shell = subprocess.Popen(
            ["unshare", "-mnpu", "--fork", "--kill-child", "--mount-proc", "bash"],
            cwd=home,
            env={name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ} | own | {"COLUMNS": "120"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.run(f"set -e; {SETUP}set +e")
        self.pid = Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children").read_text().strip()

    def run(self, command: str) -> str:
        """What a command prints. It is typed as it stands. Raises AssertionError if it fails."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f'{command}\necho "ended: $?"\n'.encode())
        self._shell.stdin.flush()
        printed, end = b"", time.monotonic() + hang_s()
        while not (ended := re.search(rb"ended: (\d+)\n$", printed)):
            ready = select.select([self._shell.stdout], [], [], max(0.0, end - time.monotonic()))[0]
            more = os.read(self._shell.stdout.fileno(), 65_536) if ready else b""
            assert more, f"{self.name}: {command} does not end: {printed.decode()}"
            printed += more
        text = printed[: ended.start()].decode()
        assert ended[1] == b"0", f"{self.name}: {command} ends with {ended[1].decode()}: {text}"
        return text

    def take(self, step: Step) -> None:
        """Runs a step. Raises AssertionError if it fails, or does not print what the page shows."""
        lines = self.run(step.command).splitlines()
        self.transcript += [f"{self.name}{'$' if self.name == 'operator' else '#'} {step.command}", *lines]
        printed = iter(lines)
        for shown in step.printed:
            pattern = re.sub(r"([\[\]*?])", r"[\1]", shown).replace("…", "*")
            seen: list[str] = []
            for line in printed:
                seen.append(line)
                if fnmatch.fnmatchcase(line.rstrip(), pattern):
                    break
            else:
                raise AssertionError(f"line {step.line}: {step.command} does not print {shown!r}: {seen}")

    def end(self) -> None:
        """Ends it with all its processes."""
        self._shell.kill()
        self._shell.communicate()


@contextlib.contextmanager
def rehearsed(
    folder: Path, addresses: dict[str, str], zone: str, srv: Path | None = None
) -> Iterator[dict[str, Machine]]:
    """Machines by name, each with one address; the first one has the bridge, and answers DNS questions from `zone`.

    With `srv`, no machine has raftlog, and each has that folder as /srv.
    """
    tools = folder / "tools"
    tools.mkdir()
    for name, text in STAND_INS.items():
        if srv and name == "raftlog":
            continue
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    first, *others = addresses
    with contextlib.ExitStack() as ends:
        found: dict[str, Machine] = {}
        for name in addresses:
            found[name] = Machine(name, folder, addresses[first], srv)
            ends.callback(found[name].end)
        bridge = f"ip link add eth0 type bridge && ip addr add {addresses[first]}/24 dev eth0 && ip link set eth0 up"
        found[first].run(bridge)
        for name in others:
            link = ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", found[name].pid]
            subprocess.run(["nsenter", "-t", found[first].pid, "-n", *link], check=True, timeout=hang_s())
            found[first].run(f"ip link set {name} master eth0 up")
            found[name].run(f"ip addr add {addresses[name]}/24 dev eth0 && ip link set eth0 up")
        (folder / "zone").write_text(zone)
        found[first].run(
            f"PYTHONPATH={ROOT} {sys.executable} -m tests.name_server {addresses[first]} 53 < ../zone 2> dns.log &\n"
            "until getent hosts n1.example.com; do sleep 0.1; done"
        )
        yield found
