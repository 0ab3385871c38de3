"""Keeps the clusters that a user knows by name: endpoints, and the files for TLS and of the token.

They are in `raftlog/profiles.json` below the user's configuration folder (XDG_CONFIG_HOME). It names files and holds no
secret. Commands use the profile that RAFTLOG_PROFILE names, else the one that `raftlog profile use` chose.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import msgspec

from raftlog.cluster.runtime.file_errors import replace_file
from raftlog.cluster.security.bearer import TOKEN_FILE_VARIABLE, TOKEN_VARIABLES
from raftlog.cluster.security.tls import CA_VARIABLE, CERTIFICATE_VARIABLE, KEY_VARIABLE

PROFILE_VARIABLE: Final = "RAFTLOG_PROFILE"


class Profile(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One cluster, as one user reaches it."""

    endpoints: list[str]
    ca: str = ""
    certificate: str = ""
    key: str = ""
    token_file: str = ""

    def variables(self) -> dict[str, str]:
        """The variables by which this process's clients, and other programs, use the files."""
        files = {
            CA_VARIABLE: self.ca,
            CERTIFICATE_VARIABLE: self.certificate,
            KEY_VARIABLE: self.key,
            TOKEN_FILE_VARIABLE: self.token_file,
        }
        return {name: path for name, path in files.items() if path}


class Profiles(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """All profiles of a user; `current` is the name of the one in use, or empty."""

    current: str = ""
    profiles: dict[str, Profile] = {}


class BadProfiles(ValueError):
    """The file cannot be used, or a profile is not there. The message says what to do."""


_decode = msgspec.json.Decoder(Profiles).decode


def profiles_file() -> Path:
    """The file with the user's profiles."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "raftlog" / "profiles.json"


def read_profiles() -> Profiles:
    """The user's profiles. Raises BadProfiles."""
    file = profiles_file()
    try:
        return _decode(file.read_bytes())
    except FileNotFoundError:
        return Profiles()
    except (OSError, msgspec.MsgspecError) as error:
        raise BadProfiles(f"{file}: {error}; repair it, or delete it") from error


def save_profiles(profiles: Profiles) -> None:
    """Writes all profiles. Raises OSError."""
    file = profiles_file()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    replace_file(file, msgspec.json.format(msgspec.json.encode(profiles)) + b"\n")


def chosen() -> tuple[str, Profile] | None:
    """The profile for this process; None: the user chose none. Raises BadProfiles."""
    known = read_profiles()
    name = os.environ.get(PROFILE_VARIABLE) or known.current
    if not name:
        return None
    if name not in known.profiles:
        raise BadProfiles(
            f"there is no profile {name!r}: raftlog profile list shows them, raftlog profile set makes one"
        )
    return name, known.profiles[name]


def use_files(profile: Profile) -> None:
    """Names the profile's files in this process's environment. A variable that is set already stays."""
    has_token = any(map(os.environ.get, TOKEN_VARIABLES))
    for name, path in profile.variables().items():
        if name != TOKEN_FILE_VARIABLE or not has_token:
            os.environ.setdefault(name, path)
