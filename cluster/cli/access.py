"""Defines `raftlog access`, `role`, `user`, `token` and `profile`: users, their grants, and their files.

A secret never stands among the arguments of a command, which other users of the machine see, and the shell keeps.
"""

from __future__ import annotations

import os
import shlex
import ssl
from contextlib import closing, suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from raftlog.cluster.api.access import AccessAnswer, AccessIn, RoleView
from raftlog.cluster.api.text import as_row, as_time
from raftlog.cluster.cli.frame.common import Cli, CommandFailed, Commands, Exit, say
from raftlog.cluster.cli.frame.output import Column, View, lines_of, view
from raftlog.cluster.cli.frame.profiles import Profile, Profiles, read_profiles, save_profiles
from raftlog.cluster.client import access_requests as requests
from raftlog.cluster.client.blocking.client import SyncClient
from raftlog.cluster.client.blocking.sockets import SyncConnection
from raftlog.cluster.client.decisions import normal_url
from raftlog.cluster.client.errors import NotApplied
from raftlog.cluster.client.http1 import BadResponse, encode_request
from raftlog.cluster.runtime import clock
from raftlog.cluster.security.bearer import save_token
from raftlog.cluster.security.tls import CA_VARIABLE, Credentials, TlsError, TlsFiles
from raftlog.cluster.security.tokens import NewToken, make_token

commands = Commands()
register = commands.register
access, role, user, profile, token = map(commands.group, ("access", "role", "user", "profile", "token"))

_DAY_MS: Final = 86_400_000
_ASKING_S: Final = 2.0
"""How long a node may take to say whether it requires a certificate, in seconds: a handshake and a short answer."""
SHOWN: Final = view("is_on", "permissions", "users", "roles", "tokens", raw="is_on")
CHANGED: Final = view("permissions", "index", raw="permissions")
DECIDED: Final = view("user", "grant", "allowed", "why", "roles", raw="allowed")
USERS: Final = view("name", "roles", "blocked", raw="name")
ROLES: Final = view("name", "built_in", "grants", raw="name")
TOKENS: Final = view("id", "user", "label", "created", "expires", raw="id")
CREATED: Final = view("id", "user", "file", raw="id")

PROFILES: Final = view("name", "current", "endpoints", "ca", "certificate", "token_file", raw="name")

NameArgument = Annotated[str, typer.Argument(help="The user: the name in a client certificate, or of tokens alone.")]
RoleArgument = Annotated[str, typer.Argument(help="The role.")]
GrantsArgument = Annotated[list[str], typer.Argument(help="Grants, as in 'read on keys:orders/*'.")]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Write the token to this new file. Without it, it is printed, once.")
]


@access("init", writes=True)
def _init(
    cli: Cli,
    name: NameArgument,
    config: Annotated[
        Path | None, typer.Option("--config", help="The settings of a node: its certificate proves that you may.")
    ] = None,
    token: Annotated[bool, typer.Option("--token", help="Make a token of this admin too.")] = False,
    out: OutOption = None,
) -> None:
    """Make the first admin, once, and switch access control on.

    With TLS it needs the certificate of a node: run it on the machine of a node, with --config.
    """
    has_tls = any(url.startswith("https://") for url in cli.endpoints)
    made = make_token() if token or out is not None or (config is None and not has_tls) else None
    first = AccessIn("init", name)
    if made is not None:
        first = AccessIn("init", name, token=made.identifier, token_hash=made.digest.hex(), label="first")
    _change_with_token(cli, first, made, out, config)
    say(f"access control is on; {name} is its first admin")
    if made is not None:
        _hand_over(cli, made, name, out)
        _tell_certificate(_needs_certificate(*_place(cli, config)), name)


@access("can")
def _can(
    cli: Cli,
    user: NameArgument,
    grant: Annotated[list[str], typer.Argument(help="VERB on RESOURCE, as in: read on keys:orders/1")],
) -> None:
    """Explain whether a user may do something, and by which of its roles. Exit code 1 if it may not."""
    with cli.client(sessions=False) as client:
        answer = client.call(requests.can(" ".join(grant), user))
    cli.printer.one({**as_row(answer), "roles": ", ".join(answer.roles)}, DECIDED)
    if not answer.allowed:
        raise typer.Exit(Exit.FAILURE)


@access("show")
def _show(cli: Cli) -> None:
    """Show whether access control is on, and how many users, roles and tokens there are."""
    access = _everything(cli)
    counts = {"users": len(access.users), "roles": len(access.roles), "tokens": len(access.tokens)}
    cli.printer.one({"is_on": access.is_on, "permissions": access.permissions, **counts}, SHOWN)


def _everything(cli: Cli) -> AccessAnswer:
    with cli.client(sessions=False) as client:
        return client.call(requests.show())


def _switch(cli: Cli, asked: AccessIn, config: Path | None = None) -> None:
    with _client(cli, config) as client:
        cli.printer.one(as_row(client.call(requests.change(asked))), CHANGED)


@access("disable", writes=True)
def _disable(cli: Cli) -> None:
    """Switch access control off: everybody may do everything again. Users, roles and tokens stay."""
    _switch(cli, AccessIn("disable"))


@access("enable", writes=True)
def _enable(
    cli: Cli,
    config: Annotated[Path | None, typer.Option("--config", help="With TLS: the settings of a node.")] = None,
) -> None:
    """Switch access control on again."""
    _switch(cli, AccessIn("enable"), config)


@role("set", writes=True)
def _set_role(
    cli: Cli,
    name: RoleArgument,
    grants: Annotated[list[str], typer.Argument(help="All of its grants, as in 'read on keys:orders/*'.")],
) -> None:
    """Make a role, or give it other grants in the place of those that it has."""
    _switch(cli, AccessIn("set_role", name, grants=grants))


@role("grant", writes=True)
def _grant_role(cli: Cli, name: RoleArgument, grants: GrantsArgument) -> None:
    """Give a role further grants; it keeps those that it has."""
    _change_role(cli, AccessIn("grant_role", name, grants=grants))


@role("ungrant", writes=True)
def _ungrant_role(cli: Cli, name: RoleArgument, grants: GrantsArgument) -> None:
    """Take grants from a role; it keeps all others."""
    _change_role(cli, AccessIn("ungrant_role", name, grants=grants))


def _change_role(cli: Cli, asked: AccessIn) -> None:
    """Changes a role, and shows all that it allows then."""
    with cli.client(sessions=False) as client:
        client.call(requests.change(asked))
        access = client.call(requests.show())
    cli.printer.all([_role_row(role) for role in access.roles if role.name == asked.name], ROLES)


@role("delete", writes=True)
def _delete_role(cli: Cli, name: RoleArgument) -> None:
    """Delete a role that no user has."""
    _switch(cli, AccessIn("delete_role", name))


@role("list")
def _roles(cli: Cli) -> None:
    """List the roles with their grants."""
    access = _everything(cli)
    cli.printer.all([_role_row(role) for role in access.roles], ROLES)


def _role_row(role: RoleView) -> dict[str, Any]:
    return {**as_row(role), "grants": ", ".join(role.grants)}


@user("set", writes=True)
def _set_user(
    cli: Cli,
    name: NameArgument,
    roles: Annotated[list[str] | None, typer.Option("--role", help="A role; may be given again.")] = None,
    blocked: Annotated[bool, typer.Option("--blocked", help="It may do nothing; its roles stay.")] = False,
) -> None:
    """Make a user, or give it other roles."""
    _switch(cli, AccessIn("set_user", name, roles=roles or [], blocked=blocked))


@user("delete", writes=True)
def _delete_user(cli: Cli, name: NameArgument) -> None:
    """Delete a user, with its tokens and sessions."""
    _switch(cli, AccessIn("delete_user", name))


@user("list")
def _users(cli: Cli) -> None:
    """List the users with their roles."""
    access = _everything(cli)
    cli.printer.all([{**as_row(user), "roles": ", ".join(user.roles)} for user in access.users], USERS)


@token("create", writes=True)
def _create_token(
    cli: Cli,
    user: NameArgument,
    days: Annotated[int | None, typer.Option("--days", help="Until it expires. [default: never]", min=1)] = None,
    label: Annotated[str, typer.Option("--label", help="What it is for.")] = "",
    out: OutOption = None,
    certificate: Annotated[
        bool | None,
        typer.Option(
            "--certificate/--no-certificate",
            help="Whether the user's clients show a certificate too. [default: ask the nodes whether they must]",
        ),
    ] = None,
) -> None:
    """Make a token of a user. It is shown once; the cluster keeps only its hash."""
    is_needed = certificate or _needs_certificate(*_place(cli))
    if is_needed and certificate is False:
        raise CommandFailed(
            f"the nodes require a certificate of every client, so with the token alone {user} gets no answer. Make a "
            f"certificate (raftlog cert client {user}), or let all nodes take clients without one "
            "(security.client_certificates, docs/security.md)"
        )
    made = make_token()
    expires_ms = 0 if days is None else clock.wall_ms() + days * _DAY_MS
    asked = AccessIn(
        "add_token", user, token=made.identifier, token_hash=made.digest.hex(), expires_ms=expires_ms, label=label
    )
    _change_with_token(cli, asked, made, out)
    _hand_over(cli, made, user, out)
    _tell_certificate(is_needed, user)


@token("revoke", writes=True)
def _revoke_token(
    cli: Cli, token: Annotated[str, typer.Argument(help="Its id, as `raftlog token list` has it.")]
) -> None:
    """Revoke a token. Requests under way that it admitted are refused as well."""
    if len(token) > 8:
        raise CommandFailed("name the token by its id, the 8 digits after rl_: a secret is no argument", Exit.USAGE)
    _switch(cli, AccessIn("delete_token", token=token))


@token("list")
def _tokens(cli: Cli) -> None:
    """List the tokens, without secrets."""
    access = _everything(cli)
    rows = [
        {
            "id": token.id,
            "user": token.user,
            "label": token.label,
            "created": as_time(token.created_ms),
            "expires": as_time(token.expires_ms) if token.expires_ms else "",
        }
        for token in access.tokens
    ]
    cli.printer.all(rows, TOKENS)


@profile("list")
def _list_profiles(cli: Cli) -> None:
    """List the profiles; the current one is marked."""
    known = read_profiles()
    rows = [
        {"name": name, "current": name == known.current, **as_row(profile), "endpoints": ", ".join(profile.endpoints)}
        for name, profile in sorted(known.profiles.items())
    ]
    cli.printer.all(rows, PROFILES)


@profile("set")
def _set_profile(
    cli: Cli,
    name: Annotated[str, typer.Argument(help="The name of the profile.")],
    urls: Annotated[str, typer.Argument(help="URLs of nodes, with commas between them.")],
    ca: Annotated[Path | None, typer.Option("--ca", help="PEM: the authorities.")] = None,
    certificate: Annotated[Path | None, typer.Option("--certificate", help="PEM: this user's certificate.")] = None,
    key: Annotated[Path | None, typer.Option("--key", help="PEM: its key.")] = None,
    token_file: Annotated[Path | None, typer.Option("--token-file", help="The file with a token.")] = None,
) -> None:
    """Make a profile, or give it other files. The first one becomes the current one."""
    paths = ("" if path is None else str(path.resolve()) for path in (ca, certificate, key, token_file))
    profile = Profile([normal_url(url) for url in urls.split(",") if url.strip()], *paths)
    known = read_profiles()
    save_profiles(Profiles(known.current or name, known.profiles | {name: profile}))
    _list_profiles(cli)
    if token_file is not None and certificate is None and _needs_certificate(tuple(profile.endpoints), profile.ca):
        say(
            "the nodes require a certificate of every client, and this profile has none: name one with --certificate "
            "and --key (raftlog cert client NAME makes it)"
        )


@profile("use")
def _use_profile(cli: Cli, name: Annotated[str, typer.Argument(help="The name; - for none.")]) -> None:
    """Use a profile for all commands from now on. RAFTLOG_PROFILE and --endpoints go before it."""
    known = read_profiles()
    if name != "-":
        _profile_of(known, name)
    save_profiles(Profiles("" if name == "-" else name, known.profiles))
    _list_profiles(cli)


@profile("delete")
def _delete_profile(cli: Cli, name: Annotated[str, typer.Argument(help="The name of the profile.")]) -> None:
    """Forget a profile. Its files stay. If it was the current one, none is current then."""
    known = read_profiles()
    _profile_of(known, name)
    kept = {each: profile for each, profile in known.profiles.items() if each != name}
    save_profiles(Profiles("" if known.current == name else known.current, kept))
    _list_profiles(cli)


@profile("env")
def _profile_variables(cli: Cli, name: Annotated[str, typer.Argument(help="The name of the profile.")]) -> None:
    """Print the variables of a profile, for other programs: eval "$(raftlog profile env NAME)"."""
    profile = _profile_of(read_profiles(), name)
    variables = {"RAFTLOG_ENDPOINTS": ",".join(profile.endpoints), **profile.variables()}
    if cli.printer.is_json:
        cli.printer.one(variables, View(tuple(map(Column, variables)), lines_of("RAFTLOG_ENDPOINTS")))
        return
    for variable, value in variables.items():
        print(f"export {variable}={shlex.quote(value)}")


def _profile_of(known: Profiles, name: str) -> Profile:
    """The profile of that name. Raises CommandFailed."""
    if name not in known.profiles:
        raise CommandFailed(
            f"there is no profile {name!r}: {', '.join(sorted(known.profiles)) or 'none was made'}", Exit.USAGE
        )
    return known.profiles[name]


def _node(config: Path) -> tuple[str, TlsFiles | None]:
    """URL and files of the node that has these settings. Raises CommandFailed."""
    from raftlog.cluster.config.settings import load_settings

    loaded = load_settings(config, os.environ)
    own = loaded.cluster.of(loaded.settings.node) if loaded.cluster is not None else None
    if own is None:
        raise CommandFailed(f"{config}: it names no node of a cluster file", Exit.USAGE)
    return own.url, loaded.tls_files()


def _client(cli: Cli, config: Path | None) -> SyncClient:
    """A client; with `config` one that has the certificate of that node."""
    if config is None:
        return cli.client(sessions=False)
    url, files = _node(config)
    return SyncClient(url, bound=True, sessions=False, deadline_s=cli.deadline_s, tls=files)


def _place(cli: Cli, config: Path | None = None) -> tuple[tuple[str, ...], str]:
    """The URLs that `_client` asks, and the file of the authority that it trusts."""
    if config is None:
        return tuple(map(normal_url, cli.endpoints)), os.environ.get(CA_VARIABLE, "")
    url, files = _node(config)
    return (url,), files.ca if files else ""


def _needs_certificate(urls: tuple[str, ...], ca: str) -> bool | None:
    """Whether a client needs a certificate, whatever token it has: one that has none asks every node.

    A node that requires one ends the connection after the handshake, most often without the alert of TLS. None: no node
    says it.
    """
    if not any(url.startswith("https://") for url in urls):
        return False
    is_needed = None
    for url in urls:
        request = encode_request("GET", "/livez", url.partition("://")[2], (), None)
        try:
            connection = SyncConnection(url, _ASKING_S, Credentials(TlsFiles(ca, "", "")))
        except (OSError, TlsError):
            continue
        with closing(connection), suppress(TimeoutError, BadResponse):
            try:
                connection.exchange(request, _ASKING_S, stream=False)
            except (ConnectionError, ssl.SSLError):
                return True
            is_needed = False
    return is_needed


def _tell_certificate(is_needed: bool | None, user: str) -> None:
    """Says what the holder of a token needs beside it."""
    if is_needed:
        say(
            f"the token needs a certificate beside it: `raftlog cert client {user}` makes one, where the authority is. "
            "RAFTLOG_CA, RAFTLOG_CERTIFICATE and RAFTLOG_KEY name the files."
        )
    elif is_needed is None:
        say("no node said whether the token's user needs a certificate too (docs/security.md)")


def _change_with_token(
    cli: Cli, asked: AccessIn, made: NewToken | None, out: Path | None, config: Path | None = None
) -> None:
    """Writes the token's file before the token counts: a token that cannot be kept must not be made.

    If the answer is lost, or the user interrupts the command, the token may count. Then its only copy is kept.
    """
    with _client(cli, config) as client:
        if made is not None and out is not None:
            save_token(out, made.text)
        try:
            client.call(requests.change(asked))
        except NotApplied:
            if out is not None:
                out.unlink(missing_ok=True)
            raise
        except BaseException:
            if made is not None:
                say(
                    f"token {made.identifier} may count, and {f'stays in {out}' if out else 'is shown this once'}. "
                    "`raftlog token list`, with the token of an admin, says whether it does."
                )
                if out is None:
                    print(made.text)
            raise


def _hand_over(cli: Cli, made: NewToken, user: str, out: Path | None) -> None:
    """Prints the token, or names the file that has it. This is the only time."""
    if out is None:
        say("this is the token; it is shown this once:")
        print(made.text)
        return
    cli.printer.one({"id": made.identifier, "user": user, "file": str(out)}, CREATED)
    say(f"export RAFTLOG_TOKEN_FILE={out.resolve()}")
