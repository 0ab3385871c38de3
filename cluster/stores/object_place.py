"""Reads and writes the objects of a store, and names a prefix of one by its URL.

Credentials and the address of a store come from the environment, as its own tools read them, or from the file that
AWS_SHARED_CREDENTIALS_FILE names: never from the command line, which other users of a machine can see. The package
obstore is imported at the first use.
"""

from __future__ import annotations

import configparser
import io
import os
import platform
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

from raftlog.cluster.api.text import how_to_install

STORE_PATIENCE_S: Final = 30
"""How long a store may not answer a request, with repetitions, before it counts as unreachable."""
_CONNECT_S: Final = 5
_RETRIES: Final = 1_000  # the patience ends them
_REQUESTS_MAX: Final = 4  # parts of one file on their way at once
_READ_MAX: Final = 8 << 20  # bytes of one request: a slow line brings them within the patience
_URL: Final = re.compile(r"(s3|gs|az)://[\w.-]+(?:/[\w.=-]+)+/?", re.ASCII)
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_NO_CREDENTIALS: Final = ("169.254.169.254", "metadata.google.internal")  # of a machine in the cloud, asked last
_STATUS: Final = "Server returned non-2xx status"
_ADDRESS: Final = {"s3": "AWS_ENDPOINT_URL", "az": "AZURE_ENDPOINT", "gs": "GOOGLE_SERVICE_ACCOUNT"}
"""The variable with the address of a store that is not its cloud's; for gs:// the file that may have one."""
_CREDENTIALS: Final = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SHARED_CREDENTIALS_FILE",
    "az": "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "gs": "GOOGLE_SERVICE_ACCOUNT",
}
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "bucket does not exist")


class ObjectStoreError(Exception):
    """A store cannot be used, refuses, or does not answer. The message has what, where and what to do."""

    exit_code = 1  # of the command line


class BadPlaceError(ObjectStoreError):
    """The URL, the bucket or the environment cannot be used as it is."""

    exit_code = 2


class NoAnswerError(ObjectStoreError):
    """The store gave no answer for STORE_PATIENCE_S."""

    exit_code = 5


class NoPackageError(ObjectStoreError):
    """The package obstore is not installed."""

    exit_code = 8


class NotAllowedError(ObjectStoreError):
    """The store does not permit it, or there are no credentials."""

    exit_code = 9


class ChangedError(Exception):
    """The object is there already, or is another one than it was."""


@dataclass(frozen=True, slots=True)
class ObjectPlace:
    """A prefix of a store, or an object under it; has of a `Path` what readers use.

    Tasks get it as a value and connect by themselves, with their own environment. Each method raises BadPlaceError for
    an unknown bucket, NotAllowedError, and NoAnswerError after STORE_PATIENCE_S.
    """

    root: str  # s3://bucket/prefix, without a slash at its end
    key: str = ""

    def __str__(self) -> str:
        return f"{self.root}/{self.key}" if self.key else self.root

    def __truediv__(self, name: str) -> Self:
        return type(self)(self.root, f"{self.key}/{name}" if self.key else name)

    @property
    def kind(self) -> str:
        """Which kind of store it is in: s3, az or gs."""
        return self.root.partition(":")[0]

    @property
    def name(self) -> str:
        """The last part of its name."""
        return self.key.rpartition("/")[2]

    def resolve(self) -> Self:
        """Itself: it has one name."""
        return self

    def exists(self) -> bool:
        """Whether there is such an object."""
        try:
            self.head()
        except FileNotFoundError:
            return False
        return True

    def head(self) -> dict[str, Any]:
        """Size, time and version of the object. Raises FileNotFoundError."""
        with self._told() as obstore:
            return dict(obstore.head(self._client, self.key))

    def open(self, mode: str = "rb", buffering: int = io.DEFAULT_BUFFER_SIZE) -> io.BufferedReader:
        """The object as a file, of which readers get only the parts that they ask for. Raises FileNotFoundError.

        `buffering`: the bytes of one request, if a reader asks for less.
        """
        return io.BufferedReader(_Object(self, self.head()["size"]), buffering)

    def read_bytes(self) -> bytes:
        """The whole object. Raises FileNotFoundError."""
        return self.read()[0]

    def read(self) -> tuple[bytes, dict[str, Any]]:
        """The whole object, and its version for `replace`. Raises FileNotFoundError."""
        with self._told() as obstore:
            answer = obstore.get(self._client, self.key)
            return bytes(answer.bytes()), _version(answer.meta)

    def read_range(self, start: int, length: int) -> bytes:
        """Bytes of the object. Raises FileNotFoundError."""
        with self._told() as obstore:
            return bytes(obstore.get_range(self._client, self.key, start=start, length=length))

    def put_file(self, path: Path) -> None:
        """Makes an object of a file; it is there whole or not at all.

        Looks whether it is: versitygw that was killed while it joined the parts calls a repeated request for that done.
        """
        with self._told() as obstore:
            obstore.put(self._client, self.key, path, max_concurrency=_REQUESTS_MAX)
            try:
                is_whole = obstore.head(self._client, self.key)["size"] == path.stat().st_size
            except FileNotFoundError:
                is_whole = False
            if not is_whole:
                raise ObjectStoreError(
                    f"the store took {self} and does not have it whole: run the same command again, and look whether "
                    f"the store was restarted meanwhile"
                )

    def replace(self, data: bytes, version: dict[str, Any] | None) -> dict[str, Any]:
        """Writes the object if it still has this version, or with None if there is none; the new version.

        Raises ChangedError otherwise. An object that has these very bytes by now is this write: its answer was lost,
        and the client sent it again.
        """
        mode: Any = "create" if version is None else version
        try:
            with self._told() as obstore:
                return _version(obstore.put(self._client, self.key, data, mode=mode, use_multipart=False))
        except ChangedError:
            found, written = self.read()
            if found != data:
                raise
            return written

    def delete(self, names: Sequence[str]) -> None:
        """Deletes these objects of the root, many with each request. One that is not there counts as deleted."""
        with suppress(FileNotFoundError), self._told() as obstore:  # Azure says it, after it has deleted the others
            obstore.delete(self._client, names)

    def listed(self) -> dict[str, datetime]:
        """The objects under this prefix: the name of each in the root, and when it was written by the store's clock."""
        with self._told() as obstore:
            batches = obstore.list(self._client, self.key or None)
            return {each["path"]: each["last_modified"] for batch in batches for each in batch}

    @property
    def _client(self) -> Any:
        address = os.environ.get(_ADDRESS[self.kind])
        return _client(self.root, tuple(sorted(options(self.root).items())), address, STORE_PATIENCE_S)

    @contextmanager
    def _told(self) -> Iterator[Any]:
        """The package obstore; what the store says in the block is an error for people."""
        obstore = _obstore(self)
        from obstore import exceptions as store

        try:
            yield obstore
        except (store.AlreadyExistsError, store.PreconditionError) as error:
            raise ChangedError(str(self)) from error
        except (store.BaseError, FileNotFoundError) as error:
            text = str(error)
            code = found[1] if (found := _CODE.search(text)) else ""
            if any(word in text for word in _NO_BUCKET):
                raise BadPlaceError(f"there is no bucket of that name: create it, or correct {self.root}") from error
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(2, "there is no such object", str(self)) from error
            if code == "RequestTimeTooSkewed":
                raise NotAllowedError(
                    f"the store refuses {self}, because the clock of this machine is off ({code}): set the clock, and "
                    f"run the same command again"
                ) from error
            if code == "AccessDenied" or isinstance(error, store.PermissionDeniedError | store.UnauthenticatedError):
                raise NotAllowedError(
                    f"the store does not permit this on {self} ({code or 'no reason given'}): check the credentials in "
                    f"the environment of this process, and that they may read, write, list and delete there"
                ) from error
            if any(word in text for word in _NO_CREDENTIALS):
                raise NotAllowedError(
                    f"there are no credentials for {self}: set {_CREDENTIALS[self.kind]}, in the environment of this "
                    f"process"
                ) from error
            reason = code or text.partition("\n")[0].rpartition(" - ")[2]
            if code or _STATUS in text:
                raise ObjectStoreError(f"the store refuses {self}: {reason}") from error
            raise NoAnswerError(
                f"the store of {self} gave no answer for {STORE_PATIENCE_S} s: is it running, and is its address right "
                f"({_ADDRESS[self.kind]} in the environment)? {reason}"
            ) from error


StoragePlace = Path | ObjectPlace
"""A folder, or a prefix of a store; or a file or an object in it."""


def place_of(text: str) -> StoragePlace:
    """The place of that name. Raises BadPlaceError for an unknown kind of store, NoPackageError without obstore."""
    if "://" not in text:
        return Path(text)
    if _URL.fullmatch(text) is None:
        raise BadPlaceError(
            f"{text} is no place that raftlog knows: write s3://BUCKET/PREFIX, gs:// or az://, a prefix of letters, "
            f"digits and . _ = - between slashes, or the path of a folder"
        )
    found = ObjectPlace(text.rstrip("/"))
    _obstore(found)
    return found


def _obstore(where: ObjectPlace) -> Any:
    """The package, also in tasks on other machines. Raises NoPackageError."""
    try:
        import obstore
    except ImportError as error:
        raise NoPackageError(
            f"{where} needs the package obstore, which is not installed on the machine {platform.node()}: "
            f"{how_to_install('store')}"
        ) from error
    return obstore


def options(root: str) -> dict[str, str]:
    """What the environment does not say to a store's client: credentials of the shared file, and HTTP without TLS where
    the address is such. Raises BadPlaceError for a file that cannot be read."""
    kind = root.partition(":")[0]
    found = {"allow_http": "true"} if os.environ.get(_ADDRESS[kind], "").startswith("http://") else {}
    path = os.environ.get("AWS_SHARED_CREDENTIALS_FILE")
    if kind != "s3" or path is None or "AWS_ACCESS_KEY_ID" in os.environ:
        return found
    profile = os.environ.get("AWS_PROFILE", "default")
    file = configparser.ConfigParser(interpolation=None)
    try:
        with Path(path).open(encoding="utf-8") as lines:
            file.read_file(lines)
        section = file[profile]
    except (OSError, configparser.Error, KeyError, UnicodeDecodeError) as error:
        raise BadPlaceError(
            f"AWS_SHARED_CREDENTIALS_FILE names {path}, which has no readable profile [{profile}]: {error}"
        ) from error
    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    return found | {name: section[name] for name in names if name in section}


@cache
def _client(root: str, given: tuple[tuple[str, str], ...], address: str | None, patience_s: int) -> Any:
    """The client of a store in this process; another `address` has another client."""
    from obstore.store import from_url

    connected: Any = from_url  # its types are of one kind of store each
    timeouts = {"timeout": f"{patience_s}s", "connect_timeout": f"{_CONNECT_S}s"}
    pauses = {"init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=2), "base": 2}
    retries = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=patience_s), "backoff": pauses}
    config: Any = {name: value for name, value in given if name != "allow_http"}
    allowed: Any = {"allow_http": True} if "allow_http" in dict(given) else {}
    try:
        return connected(root, config=config, client_options=timeouts | allowed, retry_config=retries)
    except Exception as error:  # of several kinds: an account that is missing, an address that is none
        reason = str(error).partition("\n")[0]
        raise BadPlaceError(f"{root} cannot be used: {reason}. Check the environment of this process") from error


def _version(meta: Any) -> dict[str, Any]:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name) is not None}


class _Object(io.RawIOBase):
    """An object as a file to read."""

    def __init__(self, place: ObjectPlace, size: int) -> None:
        self._place, self._size, self._at = place, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = (0, self._at, self._size)[whence] + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        length = min(len(buffer), self._size - self._at, _READ_MAX)
        if length <= 0:
            return 0
        buffer[:length] = self._place.read_range(self._at, length)
        self._at += length
        return length
