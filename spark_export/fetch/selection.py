"""Selects the rows of a range: user or internal records, operations, key prefix."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raftlog.spark_export.columns.arrays import Mask, booleans
from raftlog.spark_export.columns.decode import keys, user_records
from raftlog.spark_export.columns.frames import Frames
from raftlog.spark_export.columns.schema import OPERATIONS
from raftlog.spark_export.fetch.options import SourceOptions


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of the log a reader receives; all by default. Rows that are left out are still read, checked and
    counted.
    """

    with_internal: bool = True
    operations: tuple[str, ...] = ()
    key_prefix: bytes = b""

    @property
    def is_all(self) -> bool:
        """Whether nothing is left out."""
        return self.with_internal and not self.operations and not self.key_prefix


def of_options(options: SourceOptions) -> Selection:
    """What the options of a source ask for."""
    return Selection(options.include_internal, options.operations, options.key_prefix)


def selected(frames: Frames, selection: Selection) -> Mask:
    """Which rows of the slab are wanted."""
    mask = np.ones(frames.count, bool) if selection.with_internal else user_records(frames)
    if selection.operations:
        numbers = [OPERATIONS.index(name) for name in selection.operations]
        mask = mask & np.isin(frames.record["operation"], numbers)
        if frames.is_command is not None:
            mask &= frames.is_command
    if selection.key_prefix and mask.any():
        begins = pc.starts_with(keys(frames), pattern=selection.key_prefix)
        mask = mask & pc.fill_null(begins, False).to_numpy(zero_copy_only=False)
    return mask


def filtered(batch: pa.RecordBatch, mask: Mask) -> pa.RecordBatch:
    """The rows of the batch where the mask is true; the batch itself where all are."""
    return batch if mask.all() else batch.filter(booleans(mask))
