"""Gives every command its common options, its client, and its exit codes.

A command is a function that takes a `Cli` first; `Commands` gives it the options below and turns errors into one line
on standard error and an exit code (docs/cli.md).
"""

from __future__ import annotations

import difflib
import functools
import getpass
import inspect
import json
import math
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated, Any, Final, NoReturn

import typer

from raftlog.cluster.api.encoding import Encoding, from_b64
from raftlog.cluster.api.errors import ApiError
from raftlog.cluster.api.text import as_row, explained
from raftlog.cluster.cli.frame.discovery import SRV, NotDiscovered, discovered
from raftlog.cluster.cli.frame.hints import SESSION_TTL_MS, hint_of
from raftlog.cluster.cli.frame.last_cluster import DEFAULT_ENDPOINTS, Ambiguous, remembered, running_at
from raftlog.cluster.cli.frame.output import Format, Printer, View
from raftlog.cluster.cli.frame.profiles import BadProfiles, chosen, use_files
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.decisions import Policy
from raftlog.cluster.client.errors import (
    ClientError,
    CompareFailed,
    ConsumerFenced,
    ConsumerNotFound,
    Forbidden,
    KeyNotFound,
    OutcomeUnknown,
    Unauthorized,
    Unavailable,
)
from raftlog.cluster.security.bearer import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE
from raftlog.cluster.security.tls import CA_VARIABLE

UNREACHABLE_MS: Final = 2_000
"""How long a command looks for a cluster if no process listens at all."""


DEADLINE_S_MAX: Final = 86_400.0
"""Longest deadline of a command: a day."""

_ENDPOINTS_VARIABLE: Final = "RAFTLOG_ENDPOINTS"
_NEAR: Final = 0.9  # likeness of a variable's name: one letter more, less or different


class Exit(IntEnum):
    """The exit codes of commands."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    NOT_FOUND = 3
    COMPARE_FAILED = 4
    UNREACHABLE = 5  # or no leader
    UNKNOWN = 6  # the write may or may not have been applied
    NOT_VERIFIED = 7
    NOT_CHECKED = 8
    NOT_PERMITTED = 9
    INTERRUPTED = 130


class CommandFailed(Exception):
    """A command failed: message, exit code, and a hint on what to try."""

    def __init__(self, message: str, code: Exit = Exit.FAILURE, hint: str = "") -> None:
        super().__init__(message)
        self.exit_code = code
        self.hint = hint


def say(what: str) -> None:
    """Prints a line for people at once, on standard error."""
    print(what, file=sys.stderr, flush=True)


OutputOption = Annotated[
    Format | None,
    typer.Option("-o", "--output", help="How to print: a table on a terminal, TSV in a pipe, if not given."),
]
EncodingOption = Annotated[
    str, typer.Option("--encoding", help="Bytes in the output: auto (text where valid UTF-8) or base64.")
]
EndpointsOption = Annotated[
    str | None,
    typer.Option(
        "-e",
        "--endpoints",
        "--discover",
        envvar=_ENDPOINTS_VARIABLE,
        help="URLs of nodes, with commas between them; or srv:NAME, whose DNS SRV records name them.",
    ),
]
DeadlineOption = Annotated[
    float, typer.Option("--deadline", help="Seconds until a request is given up.", min=0.001, max=DEADLINE_S_MAX)
]
Base64Option = Annotated[bool, typer.Option("--base64", help="Keys and values are given as base64.")]


CliFunction = Callable[..., None]


@dataclass(frozen=True, slots=True)
class Cli:
    """The common options of one run of a command."""

    printer: Printer
    find: Callable[[], tuple[tuple[str, ...], str]]  # the cluster; a command that asks none looks for none
    deadline_s: float
    discover: str = ""  # srv:NAME, where DNS names the cluster

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The cluster's URLs. Raises CommandFailed."""
        return self.find()[0]

    def client(self, *, sessions: bool = True, bound: bool = False, deadline_s: float | None = None) -> SyncClient:
        """A client of the cluster."""
        return SyncClient(
            self.endpoints,
            deadline_s=self.deadline_s if deadline_s is None else deadline_s,
            sessions=sessions,
            session_ttl_ms=SESSION_TTL_MS,
            bound=bound,
            policy=Policy(unreachable_ms=UNREACHABLE_MS),
        )

    def show(self, question: Callable[[SyncClient], Any], view: View) -> None:
        """Asks the cluster, and prints the answer as one row."""
        with self.client() as client:
            self.printer.one(as_row(question(client)), view)


class Commands:
    """The commands of a module, or of a group in it, in the order in which they are defined.

    As a decorator it adds a function that takes a Cli first as a command with the common options.
    """

    def __init__(self, app: typer.Typer | None = None) -> None:
        self.app = app or typer.Typer()  # takes functions without the common options

    def __call__(self, name: str, *, writes: bool = False) -> Callable[[CliFunction], CliFunction]:
        """Adds a function as this command. One that `writes` does not choose between several running clusters."""

        def add(function: CliFunction) -> CliFunction:
            self.app.command(name)(_with_common(function, writes=writes))
            return function

        return add

    def group(self, name: str, function: CliFunction | None = None) -> Commands:
        """Adds a command with subcommands. `function`, which takes a Cli first, runs if none of them is given."""
        below = typer.Typer(no_args_is_help=function is None)
        if function is not None:
            run = _with_common(function)

            def alone(context: typer.Context, **given: Any) -> None:
                if context.invoked_subcommand is None:
                    run(**given)

            own = inspect.signature(run)
            context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
            alone.__signature__ = own.replace(parameters=[context, *own.parameters.values()])  # type: ignore[attr-defined]
            below = typer.Typer(invoke_without_command=True, help=function.__doc__)
            below.callback()(alone)
        self.app.add_typer(below, name=name)
        return Commands(below)

    def register(self, app: typer.Typer) -> None:
        """Adds them to the command line."""
        app.registered_commands += self.app.registered_commands
        app.registered_groups += self.app.registered_groups


def _with_common(function: Callable[..., None], *, writes: bool = False) -> Callable[..., None]:
    own = inspect.signature(function, eval_str=True)
    common = _common_options()

    @functools.wraps(function)
    def run(**given: Any) -> None:
        options = {option: given.pop(option) for option in common.parameters}
        with_json = options["output"] in (Format.JSON, Format.JSONL)
        ended(lambda: function(_common(writes, **options), **given), with_json, options["endpoints"] or "")

    run.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[*list(own.parameters.values())[1:], *common.parameters.values()], return_annotation=None
    )
    return run


@functools.cache
def _common_options() -> inspect.Signature:
    _, *options = inspect.signature(_common, eval_str=True).parameters.values()
    return inspect.Signature(options)


def _common(
    writes: bool,
    *,
    output: OutputOption = None,
    encoding: EncodingOption = "auto",
    endpoints: EndpointsOption = None,
    deadline: DeadlineOption = 10.0,
) -> Cli:
    """The common options; their names, types and defaults are taken from here."""
    if encoding not in ("auto", "base64"):
        raise CommandFailed(f"--encoding is {encoding!r}: it must be auto or base64", Exit.USAGE)
    if math.isnan(deadline):
        raise CommandFailed("--deadline is nan: it is a number of seconds", Exit.USAGE)
    find = functools.cache(functools.partial(find_endpoints, endpoints, writes=writes))
    if writes:
        find()  # refused before the command does anything
    chosen: Encoding = "base64" if encoding == "base64" else "auto"
    discover = endpoints if endpoints is not None and endpoints.startswith(SRV) else ""
    return Cli(Printer(output, chosen), find, deadline, discover)


def find_endpoints(given: str | None, *, writes: bool = False) -> tuple[tuple[str, ...], str]:
    """The cluster's URLs and their source: the flag or variable, a profile, a running `raftlog up`, else the default
    ports. Asks for a token first where RAFTLOG_TOKEN_FILE is `-`, and uses the files of a running
    `raftlog up --secure`.

    Of several running `raftlog up` a read takes the first and says so; one that `writes` raises CommandFailed."""
    _ask_for_token()
    if given is not None:
        urls = _urls_of(given)
        if not urls:
            raise CommandFailed(
                "--endpoints is empty: write http://HOST:PORT, several with commas between them", Exit.USAGE
            )
        if not os.environ.get(CA_VARIABLE) and (named := running_at(urls)) is not None:
            named.use_files()
        return urls, "--endpoints or RAFTLOG_ENDPOINTS"
    if _ENDPOINTS_VARIABLE in os.environ:  # typer takes an empty one for none
        raise CommandFailed(f"{_ENDPOINTS_VARIABLE} is empty: write http://HOST:PORT into it, or unset it", Exit.USAGE)
    if near := difflib.get_close_matches(_ENDPOINTS_VARIABLE, os.environ, 1, _NEAR):
        raise CommandFailed(
            f"the environment has {near[0]}, which nothing reads: say {_ENDPOINTS_VARIABLE}", Exit.USAGE
        )
    try:
        own = chosen()
    except BadProfiles as error:
        raise CommandFailed(str(error), Exit.USAGE) from error
    if own is not None:
        name, profile = own
        use_files(profile)
        return tuple(profile.endpoints), f"profile {name}"
    try:
        running, others = remembered()
    except Ambiguous as error:
        raise CommandFailed(str(error), Exit.UNREACHABLE, _naming(error.endpoints[0])) from error
    if running is not None:
        first, rest = running.endpoints[0], " and at ".join(others)
        if others and writes:
            both = f"clusters of `raftlog up` run at {first} and at {rest}: a command that writes must name one"
            raise CommandFailed(both, Exit.USAGE, _naming(others[0]))
        if others:
            say(f"reading from the cluster at {first}; others run at {rest}")
        running.use_files()
        return tuple(running.endpoints), "the running `raftlog up`"
    return DEFAULT_ENDPOINTS, "the default ports"


def _urls_of(given: str) -> tuple[str, ...]:
    """The URLs of `--endpoints`. Raises CommandFailed."""
    if not given.startswith(SRV):
        return tuple(part.strip() for part in given.split(",") if part.strip())
    try:
        return discovered(given)
    except NotDiscovered as error:
        raise CommandFailed(str(error), Exit.UNREACHABLE) from error


def _naming(endpoint: str) -> str:
    return f"Name it: -e {endpoint}, or export {_ENDPOINTS_VARIABLE}={endpoint}"


def _ask_for_token() -> None:
    """Asks on the terminal: then the token stands in no file, and in no history of a shell."""
    if os.environ.get(TOKEN_FILE_VARIABLE) != "-":
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", getpass.GetPassWarning)  # of an input that would show it
            text = getpass.getpass("Token: ").strip()
    except (getpass.GetPassWarning, EOFError) as error:
        raise CommandFailed(
            f"{TOKEN_FILE_VARIABLE} is -: the token is asked for on a terminal, and there is none", Exit.USAGE
        ) from error
    if len(text.split()) != 1:
        raise CommandFailed("a token is one word", Exit.USAGE)
    del os.environ[TOKEN_FILE_VARIABLE]
    os.environ[TOKEN_VARIABLE] = text


def ended(work: Callable[[], None], with_json: bool = False, endpoints: str = "") -> None:
    """Runs a command's work; errors become a message on standard error and the exit code. `endpoints`: as given."""
    try:
        work()
    except typer.Exit:
        raise
    except ClientError as error:
        _fail(error, _exit_of(error), hint_of(error, endpoints), with_json)
    except BrokenPipeError:  # the reader of the output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(Exit.OK) from None
    except UnicodeEncodeError as error:
        _fail(ValueError(explained(error)), Exit.USAGE, "", with_json)
    except OSError as error:
        _fail(OSError(explained(error)), Exit.FAILURE, "", with_json)
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None
    except Exception as error:  # also of other rooms: `exit_code` says which
        code = getattr(error, "exit_code", Exit.USAGE if isinstance(error, ValueError) else None)
        if code is None:  # a defect
            raise
        _fail(error, Exit(code), getattr(error, "hint", ""), with_json)


def _fail(error: Exception, code: Exit, hint: str, with_json: bool) -> NoReturn:
    if with_json:
        shown: dict[str, Any] = {"error": str(error), "exit": int(code), "code": code.name.lower()}
        if isinstance(error, ClientError):
            shown |= {"code": str(error.code), "outcome": str(error.outcome), "tried": list(error.tried)}
        if isinstance(error, OutcomeUnknown) and error.session:
            shown |= {"session": error.session, "sequence": error.sequence}
        say(json.dumps(shown, ensure_ascii=False))
    else:
        say(f"raftlog: {error}")
        if hint:
            say(hint)
    raise typer.Exit(code) from error


def _exit_of(error: ClientError) -> Exit:
    match error:
        case KeyNotFound() | ConsumerNotFound():
            return Exit.NOT_FOUND
        case Unauthorized() | Forbidden():
            return Exit.NOT_PERMITTED
        case CompareFailed() | ConsumerFenced():
            return Exit.COMPARE_FAILED
        case Unavailable():
            return Exit.UNREACHABLE
        case OutcomeUnknown():
            return Exit.UNKNOWN
        case _:
            return Exit.FAILURE


def bytes_of(text: str, is_base64: bool, what: str) -> bytes:
    """The bytes of a key or value from the command line."""
    try:
        return from_b64(text, what) if is_base64 else os.fsencode(text)
    except ApiError as error:
        raise CommandFailed(error.message, Exit.USAGE) from error
