"""Which rows of a range a reader is given: by who wrote them, by operation, and by the beginning of the key."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark_export.arrays import Mask, booleans
from spark_export.decode import keys, user_records
from spark_export.frames import Frames
from spark_export.options import SourceOptions
from spark_export.schema import OPERATIONS


@dataclass(frozen=True, slots=True)
class Selection:
    """Everything unless said otherwise. What is left out is read, checked and counted all the same."""

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
