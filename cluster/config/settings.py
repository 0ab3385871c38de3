"""Reads the settings of a node, each with its default, from a TOML file, the environment and flags.

`raftlog node` and the other commands call it. Later sources win: default, file, `RAFTLOG_<SECTION>_<KEY>`, flag. An
unknown key is refused with the nearest valid name. `load_settings` also returns the source of each value (`raftlog
settings show --origin`).
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec

from raftlog.cluster.config.bounds import DERIVED, FIXED, LEAST, FixedLimits, derive, rule_of, serves_instead
from raftlog.cluster.config.cluster_file import ClusterFile, SettingsError, configured_text, read_cluster, split_address
from raftlog.cluster.config.security_settings import SecuritySettings, check_security
from raftlog.cluster.security.addresses import is_loopback_host
from raftlog.cluster.security.tls import TlsFiles
from raftlog.raft.options import Options

ENVIRONMENT_PREFIX: Final = "RAFTLOG_"
RETENTION_SEGMENTS_MIN: Final = 4
"""Least number of segments: the one being written, the next one, and as many again while a snapshot is saved."""


class HttpSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    listen: str = ""  # host:port; empty: where the cluster file's url says
    hosts: list[str] = []  # further allowed Host values, besides the url's and loopback names
    # A line for every request; probes (livez, readyz, metrics, status) only when they fail. Without it only requests
    # that failed (status 500 and up) or were slow (limits.request_slow_ms) have one.
    access_log: bool = False
    probe_listen: str = ""  # host:port for /livez, /readyz and /metrics without TLS and users; empty: none
    probe_metrics: bool = True  # false: no /metrics there
    console: bool = True  # whether / answers browsers with the console


class PeerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    listen: str = ""  # host:port; empty: where the cluster file says
    redial_max_ms: int = 100  # longest pause between two dials of a peer that refuses
    connect_timeout_ms: int = 1_200  # a dial that takes longer is given up


class LimitSettings(FixedLimits, frozen=True, forbid_unknown_fields=True):
    """Every bound of the server. The core's are in section raft, the state machine's in the cluster file.

    A request over a bound is refused at once with a message that names the bound. Most bounds are no settings: they
    follow one, or are fixed (`raftlog.cluster.config.bounds`)."""

    memory_bytes: int = 1 << 30  # held for clients and peers, beside the store: other bounds are shares
    inbox_requests_max: int = 16_384  # writes that wait to be proposed or forwarded
    inbox_bytes_max: int = 64 << 20
    inflight_requests_max: int = 65_536  # writes proposed or forwarded whose outcome is not known yet
    waiters_max: int = 65_536  # reads and long polls that wait: for a read index, or for an index to be applied
    recent_bytes_max: int = 32 << 20  # size of the newest applied entries kept in memory for readers
    ledger_queue_bytes_max: int = 64 << 20  # effects not yet written: beyond it applying waits
    snapshot_log_bytes: int = 256 << 20  # a snapshot begins after this much log since the last one,
    snapshot_log_percent: int = 100  # or this percentage of the size of the last one, whichever is more;
    snapshot_log_records: int = 100_000  # sooner, after this many records and that percentage: a start replays them
    trailing_log_bytes: int = 1 << 30  # a follower that lacks more log than this gets the snapshot instead,
    trailing_log_percent: int = 400  # or than this percentage of the snapshot's size, whichever is more
    link_bytes_max: int = 16 << 20  # consensus messages waiting for a peer's socket; more are dropped
    bulk_bytes_max: int = 32 << 20  # forwards waiting for the leader's socket; more are refused
    handshakes_max: int = 256  # TLS handshakes under way on one port; one more ends the oldest,
    address_handshakes_max: int = 128  # and so does one more with one address
    disk_stall_ms: int = 2_000  # a disk operation that hangs longer makes a leader step down
    disk_slow_ms: int = 50  # a leader whose syncs take this long (median of five seconds) hands over
    clock_skew_ms: int = 5_000  # a leader whose clock differs more from a majority's hands over
    stop_timeout_ms: int = 5_000  # hand-over and last answers at a clean stop
    deadline_default_ms: int = 10_000  # of a request that names none
    deadline_max_ms: int = 120_000
    body_bytes_max: int = 8 << 20  # of one HTTP request
    bodies_bytes_max: int = 128 << 20  # of the bodies of all requests that are not answered yet
    body_stall_ms: int = 5_000  # a body of which less than 64 KiB come in this time is given up
    answers_bytes_max: int = 128 << 20  # of all answers and streams that their readers have not taken yet
    records_max: int = 50_000  # in one request
    value_bytes_max: int = 1 << 20  # of one value
    connections_max: int = 16_384  # of clients; one more is answered busy and closed,
    address_connections_max: int = 8_192  # and so is one more with one address
    wait_max_ms: int = 60_000  # of a long poll
    open_requests_max: int = 8_192  # HTTP requests being served
    keepalives_max: int = 1_024  # keepalives of sessions beyond open_requests_max, inbox_requests_max
    watchers_max: int = 1_024  # open watch and follow streams
    principal_waiting_max: int = 4_096  # requests of one user that wait for their turns
    principal_requests_max: int = 50_000  # requests of one user in a second, at one node,
    principal_bytes_max: int = 1 << 30  # bytes of their bodies and answers,
    principal_streams_max: int = 256  # and streams and long polls of one user that are open
    stream_stall_ms: int = 10_000  # a stream whose reader takes nothing for this long is closed with its `next`
    progress_ms: int = 4_000  # streams say how far they are at least this often
    backup_max_ms: int = 3_600_000  # a backup that takes longer is ended
    digest_point_entries: int = 1_000  # the leader commits a digest point after so many entries (10,000 at most)
    request_slow_ms: int = 1_000  # a request that takes longer has a line in the log, unless it was asked to wait
    request_lines_max: int = 16_384  # lines of the request log that wait to be written; further ones are only counted


class DiskSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    segment_bytes: int = 64 << 20  # preallocated size of one segment
    mark_idle_ms: int = 5  # a mark of its own after this long without a sync, or as long as a sync takes


class RetentionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How much of the log is kept for readers; 0 is no bound. Whole segments go, and the newest always stays. By
    default all is kept: the log is the source for other systems, and deleted records do not come back."""

    bytes: int = 0  # size of the log's files on one disk, with the next segment made ahead
    age_ms: int = 0  # a segment goes when its newest record is older than this, by the times in the log
    held_bytes: int = 0  # unread records of a consumer group stay while the files are no larger; 0: go


class ScrubSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reading all files again and again, so that damage is found before a reader meets it."""

    bytes_per_second: int = 4 << 20  # at most; less where disk or processor have other work. 0: nothing is read
    pause_ms: int = 3_600_000  # from the end of a round through all files to the beginning of the next


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"  # auto: text on a terminal, else JSON
    file: str = ""  # beside the cluster file; replaces standard error. Empty: standard error as it is
    file_bytes_max: int = 64 << 20  # a longer file is renamed to FILE.1, and a new one begun
    audit_file: str = ""  # beside the cluster file: the audit log. Empty: its lines are in the node's own log
    files_kept: int = 2  # renamed files that are kept; older ones are deleted


class TraceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Traces of requests for OpenTelemetry (extra `otel`)."""

    endpoint: str = ""  # URL of a receiver of OTLP/HTTP, with its path; empty: no traces
    every: int = 0  # also one of so many requests without a traceparent; 0: none of them


RaftSettings = msgspec.defstruct(
    "RaftSettings",
    [(field.name, int, field.default) for field in fields(Options)],
    frozen=True,
    forbid_unknown_fields=True,
)
"""`raftlog.raft.options.Options`, key by key."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    node: int = 0
    cluster_file: str = ""
    data: str = ""  # the data folder; empty: what the cluster file says
    stop_with_stdin: bool = False  # a clean stop when standard input closes, as when the starting process ends
    http: HttpSettings = msgspec.field(default_factory=HttpSettings)
    peer: PeerSettings = msgspec.field(default_factory=PeerSettings)
    dial: dict[int, str] = {}  # node id -> host:port to dial instead of its own address (proxies, tunnels)
    raft: Any = msgspec.field(default_factory=RaftSettings)
    limits: LimitSettings = msgspec.field(default_factory=LimitSettings)
    disk: DiskSettings = msgspec.field(default_factory=DiskSettings)
    retention: RetentionSettings = msgspec.field(default_factory=RetentionSettings)
    scrub: ScrubSettings = msgspec.field(default_factory=ScrubSettings)
    log: LogSettings = msgspec.field(default_factory=LogSettings)
    trace: TraceSettings = msgspec.field(default_factory=TraceSettings)
    security: SecuritySettings = msgspec.field(default_factory=SecuritySettings)

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach the node's HTTP API."""
        return bool(self.http.listen) and not is_loopback(self.http.listen)

    def options(self) -> Options:
        """The core's tunables. Raises SettingsError."""
        try:
            return Options(**msgspec.structs.asdict(self.raft))
        except ValueError as error:
            raise SettingsError(f"raft.{error}") from error


_SECTIONS: Final[dict[str, type[msgspec.Struct]]] = {
    "http": HttpSettings,
    "peer": PeerSettings,
    "raft": RaftSettings,
    "limits": LimitSettings,
    "disk": DiskSettings,
    "retention": RetentionSettings,
    "scrub": ScrubSettings,
    "log": LogSettings,
    "trace": TraceSettings,
    "security": SecuritySettings,
}
_TOP: Final = ("node", "cluster_file", "data", "stop_with_stdin")


def setting_types() -> dict[str, Any]:
    """Every key (`section.name`) that may be set, with its type, in the order of the struct, without
    `dial.<node id>`."""
    types: dict[str, Any] = {}
    for field in msgspec.structs.fields(Settings):
        if field.name in _TOP:
            types[field.name] = field.type
        elif field.name in _SECTIONS:
            section = _SECTIONS[field.name]
            types |= {f"{field.name}.{each.name}": each.type for each in msgspec.structs.fields(section)}
    return {key: kind for key, kind in types.items() if not rule_of(key)}


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """One key, its value, and where the value came from: `default`, a file, a variable or a flag."""

    key: str
    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The settings, the origin of each, and the cluster file that they name (None without one)."""

    settings: Settings
    origins: tuple[SettingOrigin, ...]
    cluster: ClusterFile | None
    folder: Path  # base of relative paths: the folder of the cluster file, else the current one

    def tls_files(self) -> TlsFiles | None:
        """The files of section security; None: the node speaks without TLS."""
        return self.settings.security.files(self.folder)

    @property
    def data(self) -> Path:
        """The data folder."""
        own = self.cluster.of(self.settings.node) if self.cluster else None
        return self.folder / (self.settings.data or (own.data if own else ""))


def load_settings(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> LoadedSettings:
    """The settings of those sources, checked.

    `file` may be a settings file, or a cluster file itself (then `node` comes from a flag or the environment).
    `flags` maps keys (`limits.records_max`) to values. Raises SettingsError.
    """
    types = setting_types()
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if file is not None:
        try:
            table = tomllib.loads(configured_text(file))
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{file}: {error}") from error
        if "cluster" in table:
            table = {"cluster_file": str(file.resolve())}
        for key, value in _flat(table):
            _take(types, values, key, value, f"{file}: {key}")
            origins[key] = str(file)
    for key, name, value in _from_environment(types, environment or {}):
        _take(types, values, key, value, name)
        origins[key] = name
    for key, value in (flags or {}).items():
        _take(types, values, key, value, f"flag {key}")
        origins[key] = f"flag --{key}"

    settings = _build(values)
    cluster, folder = None, Path()
    if settings.cluster_file:
        base = file.parent if file is not None and origins["cluster_file"] == str(file) else Path()
        path = base / settings.cluster_file
        cluster, folder = read_cluster(path), path.parent
        if not settings.node and cluster.cluster.join:
            settings = msgspec.structs.replace(settings, node=cluster.cluster.join)
            origins["node"] = str(path)
    settings = _with_addresses(settings, cluster)
    _check(settings, cluster)
    shown = _flat(msgspec.to_builtins(settings, str_keys=True))
    return LoadedSettings(
        settings,
        tuple(SettingOrigin(key, value, origins.get(key, _default_origin(key, settings))) for key, value in shown),
        cluster,
        folder,
    )


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach `host:port`."""
    return is_loopback_host(split_address(address, "address")[0])


def _default_origin(key: str, settings: Settings) -> str:
    if key in {"http.listen", "peer.listen"} and settings.cluster_file:
        return settings.cluster_file
    return rule_of(key) or "default"


def _flat(table: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """`section.name` -> value, one level deep; an empty section has none."""
    flat: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            flat += [(f"{key}.{name}", each) for name, each in value.items()]
        else:
            flat.append((key, value))
    return flat


def _take(types: Mapping[str, Any], values: dict[str, Any], key: str, value: Any, where: str) -> None:
    """Sets values[key], converted; raises SettingsError naming `where`."""
    if key.startswith("dial."):
        wanted: Any = str
        if not key.removeprefix("dial.").isdigit():
            raise SettingsError(f"{where}: what follows dial is a node id, as in dial.2")
    elif key in types:
        wanted = types[key]
    else:
        near = difflib.get_close_matches(key, types, 1)
        hint = serves_instead(key, _DEFAULTS.get(key)) or (f"did you mean {near[0]}?" if near else "")
        raise SettingsError(f"{where} is no setting" + (f"; {hint}" if hint else ""))
    if isinstance(value, str) and wanted == list[str]:
        value = [part.strip() for part in value.split(",") if part.strip()]
    try:
        values[key] = msgspec.convert(value, wanted, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        raise SettingsError(f"{where} is {value!r}: {str(error)[0].lower()}{str(error)[1:]}") from error
    most = TIME_MS_MAX if key.endswith("_ms") else NUMBER_MAX
    if isinstance(values[key], int) and values[key] > most:
        raise SettingsError(f"{where} is {value}: it must be at most {most}")


def _from_environment(types: Mapping[str, Any], environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """key, variable, value of every variable that names a setting; a near miss of one is refused."""
    keys = {ENVIRONMENT_PREFIX + key.replace(".", "_").upper(): key for key in (*types, *DERIVED, *FIXED)}
    for name, value in environment.items():
        if name in keys:
            yield keys[name], name, value
        elif name.startswith(f"{ENVIRONMENT_PREFIX}DIAL_"):
            yield f"dial.{name.removeprefix(f'{ENVIRONMENT_PREFIX}DIAL_')}", name, value
        elif name.startswith(ENVIRONMENT_PREFIX) and (near := difflib.get_close_matches(name, keys, 1, 0.85)):
            raise SettingsError(f"environment: {name} is no setting; did you mean {near[0]}?")


NUMBER_MAX: Final = 1 << 53
"""The highest value of a setting, as of a number in JSON."""
TIME_MS_MAX: Final = 1_000_000_000_000
"""The longest time, in milliseconds: 31 years. Python's waits end at 292 years with an error."""
_DEFAULTS: Final = dict(_flat(msgspec.to_builtins(Settings(), str_keys=True)))


def _build(values: Mapping[str, Any]) -> Settings:
    tree: dict[str, Any] = {}
    for key, value in {**values, **derive(values, _DEFAULTS)}.items():
        section, _, name = key.rpartition(".")
        if section:
            tree.setdefault(section, {})[name] = value
        else:
            tree[key] = value
    sections: dict[str, Any] = {name: kind(**tree.pop(name, {})) for name, kind in _SECTIONS.items()}
    dial = {int(node): address for node, address in tree.pop("dial", {}).items()}
    return Settings(**tree, **sections, dial=dial)


def _with_addresses(settings: Settings, cluster: ClusterFile | None) -> Settings:
    """Fills in where to listen from the cluster file."""
    own = cluster.of(settings.node) if cluster else None
    if own is None:
        return settings
    http, peer = settings.http, settings.peer
    if not http.listen:
        http = msgspec.structs.replace(http, listen=urlsplit(own.url).netloc)
    if not peer.listen:
        peer = msgspec.structs.replace(peer, listen=own.peer)
    return msgspec.structs.replace(settings, http=http, peer=peer)


def _check(settings: Settings, cluster: ClusterFile | None) -> None:
    if cluster is not None and cluster.of(settings.node) is None:
        ids = ", ".join(str(each.id) for each in cluster.node)
        raise SettingsError(f"node is {settings.node}: {settings.cluster_file} has the nodes {ids}; say --node ID")
    for key, least in LEAST.items():
        if (value := getattr(settings.limits, key.removeprefix("limits."))) < least:
            raise SettingsError(f"{key} is {value}: it must be at least {least}, because other bounds are shares of it")
    settings.options()
    for section in (settings.limits, settings.disk, settings.peer):
        for name in section.__struct_fields__:
            value = getattr(section, name)
            if isinstance(value, int) and value < 1:
                raise SettingsError(f"{name} is {value}: it must be at least 1")
    if (log := settings.log).file_bytes_max < 1 or log.files_kept < 0:
        raise SettingsError(
            f"log.file_bytes_max is {log.file_bytes_max}, files_kept {log.files_kept}: the first is at least 1, the "
            "second at least 0"
        )
    kept, least = settings.retention, RETENTION_SEGMENTS_MIN * settings.disk.segment_bytes
    if min(kept.age_ms, kept.bytes, kept.held_bytes) < 0 or 0 < kept.bytes < least:
        raise SettingsError(
            f"retention.bytes is {kept.bytes}, age_ms {kept.age_ms}, held_bytes {kept.held_bytes}: none is negative, "
            f"and bytes are 0 (keep all) or at least {RETENTION_SEGMENTS_MIN} segments, {least} with this "
            "disk.segment_bytes"
        )
    if (scrub := settings.scrub).bytes_per_second < 0 or scrub.pause_ms < 1:
        raise SettingsError(
            f"scrub.bytes_per_second is {scrub.bytes_per_second}, pause_ms {scrub.pause_ms}: the first is 0 (off) or "
            "more, the second at least 1"
        )
    if (trace := settings.trace).every < 0:
        raise SettingsError(f"trace.every is {trace.every}: it is 0 (none) or more")
    if trace.endpoint and not re.fullmatch(r"https?://[^/\s@]+/\S+", trace.endpoint):
        raise SettingsError(
            f"trace.endpoint is {trace.endpoint!r}: write the whole URL of a receiver, without user and "
            "password, as in http://127.0.0.1:4318/v1/traces"
        )
    addresses = (("http.listen", settings.http.listen), ("peer.listen", settings.peer.listen))
    for key, address in addresses:
        if address:
            split_address(address, key)
    for node, address in settings.dial.items():
        split_address(address, f"dial.{node}")
    if probe := settings.http.probe_listen:
        split_address(probe, "http.probe_listen")
        for key, address in addresses:
            if address == probe:
                raise SettingsError(
                    f"http.probe_listen is {probe}, and so is {key}: probes need an address of their own"
                )
    own = cluster.of(settings.node) if cluster is not None else None
    beyond = [f"{key} is {each}" for key, each in addresses if each and not is_loopback(each)]
    check_security(settings.security, beyond, own.url if own is not None else "")
