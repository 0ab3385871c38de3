"""Several threads may use the client for the first time at once: every decoder is whole before the first of them.

msgspec 0.22 builds what it knows of a Struct at the first decoding, and shows it to other threads before it is whole: a
thread that decodes meanwhile reads pointers that are not set yet, and the process ends with signal 11. No function
makes a decoder of its own: `decoders_are_made_at_import` of tests/house/rules.py.
"""

import subprocess
import sys

from tests.support import HANG_S

WHOLE = """
import gc, importlib, pkgutil, sys
import msgspec

for package in ("raftlog.cluster", "raftlog.chaos", "raftlog.spark_export"):
    folder = importlib.import_module(package).__path__
    for module in pkgutil.walk_packages(folder, package + "."):
        importlib.import_module(module.name)

built = []
kinds = [each.type for each in gc.get_objects() if isinstance(each, (msgspec.json.Decoder, msgspec.msgpack.Decoder))]
sys.setprofile(lambda frame, event, _: event == "call" and built.append(frame.f_code.co_name))
for kind in kinds:
    msgspec.json.Decoder(kind)
sys.setprofile(None)
print(len(kinds), built.count("get_class_annotations"))


class Late(msgspec.Struct):
    number: int


sys.setprofile(lambda frame, event, _: event == "call" and built.append(frame.f_code.co_name))
msgspec.json.Decoder(Late)
sys.setprofile(None)
print(built.count("get_class_annotations"))
"""


def test_decoders_made_at_import_leave_nothing_to_build() -> None:
    """A second decoder of any type that some module decodes reads no annotations: the first one built all of it, nested
    types too. A type that has no decoder yet does read them, so the test would see it."""
    done = subprocess.run([sys.executable, "-c", WHOLE], capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode == 0, done.stderr[-2000:]
    kinds, late, seen = map(int, done.stdout.split())
    assert kinds > 20, "the decoders of the modules were not found"
    assert late == 0
    assert seen == 1
