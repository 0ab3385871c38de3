"""Several threads may use the client for the first time at once: every decoder is whole before the first of them.

msgspec 0.22 builds what it knows of a Struct at the first decoding, and shows it to other threads before it is whole: a
thread that decodes meanwhile reads pointers that are not set yet, and the process ends with signal 11.
"""

import subprocess
import sys

from tests.support import HANG_S

ROUNDS = 40
"""Each round imports the modules again. Without decoders made at import, one round in four ended with signal 11."""

RACE = f"""
import importlib, sys, threading
import msgspec

sys.setswitchinterval(1e-6)
THREADS = 8
STATUS = (
    b'{{"sessions":1,"state":{{"xor":"0","count":1}},"followers":[{{"node":1}}],"consumers":[{{"group":"g"}}],'
    b'"backfill":{{"state":"x"}},"scrub":{{"state":"x"}},"digests":{{"index":1}},"leader":{{"node":1}}}}'
)
LEADERLESS = b'{{"causes":[{{"code":"x"}}],"nodes":[{{"node":1,"peers":[{{"node":1}}],"refused":[{{"node":1}}]}}]}}'
PROBLEM = b'{{"leader":{{"node":1}},"kv":{{"key":"a"}},"code":"x"}}'


def race(work):
    barrier = threading.Barrier(THREADS)

    def together():
        barrier.wait()
        for _ in range(20):
            for each in work:
                try:
                    each()
                except msgspec.ValidationError:
                    pass  # the bodies are cut short: what matters is that their fields are looked at

    threads = [threading.Thread(target=together) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


for number in range({ROUNDS}):
    for name in [name for name in sys.modules if name.startswith(("raftlog.cluster", "raftlog.spark_export"))]:
        del sys.modules[name]
    requests = importlib.import_module("raftlog.cluster.client.requests")
    flow = importlib.import_module("raftlog.cluster.client.flow")
    sessions = importlib.import_module("raftlog.cluster.api.sessions")
    door = importlib.import_module("raftlog.spark_export.fetch.door")
    race([
        lambda: requests.status().decode(None, STATUS),
        lambda: requests.explain_leaderless().decode(None, LEADERLESS),
        lambda: flow._problem(PROBLEM),
        lambda: door.log_page(b'{{"records":[{{"index":1,"changes":[{{"key":"a"}}]}}]}}'),
        lambda: msgspec.json.encode(sessions.SessionIn(ttl_ms=1)),
    ])
print("whole")
"""


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


def test_threads_that_decode_for_the_first_time_at_once_do_not_crash() -> None:
    """Eight threads decode the same answers for the first time, switched as often as Python can: no round crashes."""
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, check=False, timeout=HANG_S)
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr[-2000:]
