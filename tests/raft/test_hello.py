"""Whose disk may speak: each refusal of a peer's hello, and its words."""

import pytest

from raft.hello import refusal
from tests.raft.lab import configuration

MEMBERS = configuration(3)


@pytest.mark.parametrize(
    ("sender", "incarnation", "boot", "words"),
    [
        (2, f"{2:032x}", 4, None),
        (2, f"{2:032x}", 5, None),
        (1, f"{1:032x}", 9, "it is this one"),
        (2, f"{3:032x}", 9, "a wiped or foreign data folder cannot vote"),
        (2, f"{2:032x}", 3, "its data folder is an old copy"),
        (9, "whatever", 4, None),
    ],
)
def test_pitfall_46_a_hello_is_taken_only_from_the_disk_that_is_meant(
    sender: int, incarnation: str, boot: int, words: str | None
) -> None:
    """This node itself, another disk under a member's number, and a disk that was rolled back are refused; a node that
    this configuration does not name may have joined meanwhile (4 starts of the sender were seen)."""
    told = refusal(sender=sender, incarnation=incarnation, boot=boot, node=1, configuration=MEMBERS, boot_seen=4)
    assert (told is None) if words is None else (told is not None and words in told)
