"""Runs an iterator in a thread of its own, so that reading and sending overlap."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Ahead(Generic[T]):
    """The items of an iterator, read ahead until they measure more than `limit`, but at least one."""

    def __init__(self, source: Iterator[T], size_of: Callable[[T], int], limit: int) -> None:
        self._source = source
        self._size_of = size_of
        self._limit = limit
        self._changed = threading.Condition()  # guards all below
        self._items: deque[T] = deque()
        self._size = 0
        self._end: BaseException | None = None
        self._has_ended = False
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="import-reader", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        end: BaseException | None = None
        try:
            for item in self._source:
                if not self._put(item):
                    break
        except BaseException as error:  # `next` raises it
            end = error
        finally:
            with self._changed:
                self._has_ended, self._end = True, end
                self._changed.notify_all()
            if (close := getattr(self._source, "close", None)) is not None:  # a generator
                close()

    def _put(self, item: T) -> bool:
        """Waits for room; returns whether items are still wanted."""
        size = self._size_of(item)
        with self._changed:
            while self._items and self._size + size > self._limit and not self._is_closed:
                self._changed.wait()
            self._items.append(item)
            self._size += size
            self._changed.notify_all()
            return not self._is_closed

    def next(self, is_wanted: Callable[[T], bool] | None = None) -> T | None:
        """The next item; None at the end. Raises what the iterator raised. With `is_wanted` it does not wait: None if
        no item is there, or the next is not wanted."""
        with self._changed:
            while is_wanted is None and not self._items and not self._has_ended:
                self._changed.wait()
            if self._items and (is_wanted is None or is_wanted(self._items[0])):
                item = self._items.popleft()
                self._size -= self._size_of(item)
                self._changed.notify_all()
                return item
            if is_wanted is None and self._end is not None:
                raise self._end
            return None

    def close(self, wait_s: float = 0) -> None:
        """Ends the thread at its next item; waits so long for its end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(wait_s)
