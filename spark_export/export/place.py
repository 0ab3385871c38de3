"""Names the place of an export: a folder, or a prefix of an object store, whose errors are those of exports here."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from raftlog.cluster.stores import object_place as stores
from raftlog.spark_export.errors import ExportError, ExtraMissingError, NotPermittedError, UnreachableError, UsageError

_ERRORS: Final[dict[type[stores.ObjectStoreError], type[ExportError]]] = {
    stores.ObjectStoreError: ExportError,
    stores.BadPlaceError: UsageError,
    stores.NoAnswerError: UnreachableError,
    stores.NoPackageError: ExtraMissingError,
    stores.NotAllowedError: NotPermittedError,
}


class StorePlace(stores.ObjectPlace):
    """A prefix of a store, or an object under it. Each method raises UsageError for an unknown bucket,
    NotPermittedError, and UnreachableError after the store's patience."""

    @contextmanager
    def _told(self) -> Iterator[Any]:
        with of_export(), super()._told() as obstore:
            yield obstore


Place = Path | StorePlace
"""A folder, or a prefix of a store; or a file or an object in it."""


def place_of(text: str) -> Place:
    """The place of that name. Raises UsageError for an unknown kind of store, ExtraMissingError without obstore."""
    with of_export():
        found = stores.place_of(text)
    return found if isinstance(found, Path) else StorePlace(found.root)


def source(file: Place) -> Any:
    """What pyarrow reads: the path of a local file, which it opens itself, or the object as a file."""
    return file if isinstance(file, Path) else file.open()


@contextmanager
def of_export() -> Iterator[None]:
    """Errors of a store in the block become those of exports."""
    try:
        yield
    except stores.ObjectStoreError as error:
        raise _ERRORS[type(error)](str(error)) from error
