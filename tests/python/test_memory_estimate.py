"""The memory limit is an estimate made before each allocation. Here the real peak of a process is held against it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT = 64 << 20

PROGRAM = """
import struct, sys
sys.path[:0] = sys.argv[1:3]
import pctx_sandbox
pctx_sandbox.__path__ += sys.argv[3].split(":")
from hostile import opened
from pctx_sandbox.errors import SerializationError

def peak():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmHWM"))

body = eval(sys.argv[4])
opened(b"N")
before = peak()
try:
    opened(body, memory=int(sys.argv[5]), objects=10**9)
    print("value", peak() - before)
except SerializationError as error:
    assert "bytes of memory" in str(error), error
    print("refused", peak() - before)
"""
BODIES = {
    "lists": 'b"(" + b"]" * 3_000_000 + b"t"',
    "dicts": 'b"(" + b"}" * 3_000_000 + b"t"',
    "sets": 'b"(" + b"\\x8f" * 3_000_000 + b"t"',
    "remembered lists": 'b"(" + b"]\\x94" * 3_000_000 + b"t"',
    "nothing": 'b"(" + b"N" * 5_000_000 + b"t"',
    "tuples": 'b"(" + b"N\\x85" * 3_000_000 + b"t"',
    "floats": 'b"(" + (b"G" + bytes(8)) * 3_000_000 + b"t"',
    "texts": 'b"(" + b"\\x8c\\x04\\xf0\\x9f\\x98\\x80" * 3_000_000 + b"t"',
    "a wide text": 'b"X" + struct.pack("<I", 40_000_004) + b"a" * 40_000_000 + b"\\xf0\\x9f\\x98\\x80"',
    "integers": 'b"(" + (b"\\x8a\\x09" + b"\\x01" * 9) * 3_000_000 + b"t"',
    "keys": 'b"}(" + b"".join(b"J" + struct.pack("<i", i) + b"N" for i in range(1_500_000)) + b"u"',
    "elements": 'b"\\x8f(" + b"".join(b"J" + struct.pack("<i", i) for i in range(1_500_000)) + b"\\x90"',
    "frozensets": 'b"(" + b"(\\x91" * 3_000_000 + b"t"',
}


def measure(body, limit):
    import pctx_sandbox

    folders = [str(HERE.parent.parent / "python"), str(HERE), ":".join(pctx_sandbox.__path__)]
    command = [sys.executable, "-c", PROGRAM, *folders, body, str(limit)]
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    outcome, peak = done.stdout.split()
    return outcome, int(peak)


@pytest.mark.parametrize("name", BODIES)
def test_no_result_takes_much_more_memory_than_its_limit(name):
    outcome, peak = measure(BODIES[name], LIMIT)
    assert outcome == "refused" and peak < 1.5 * LIMIT


def test_with_room_the_same_results_take_more():
    outcome, peak = measure(BODIES["sets"], 4 << 30)
    assert outcome == "value" and peak > 4 * LIMIT


NO_ROOM = """
import resource, sys
sys.path[:0] = sys.argv[1:3]
import pctx_sandbox
pctx_sandbox.__path__ += sys.argv[3].split(":")
from hostile import opened
from pctx_sandbox.errors import SerializationError

body = eval(sys.argv[4])
opened(b"N")
used = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (used + (32 << 20), resource.RLIM_INFINITY))
try:
    opened(body, memory=1 << 40, objects=10**9)
except SerializationError as error:
    print(str(error).splitlines()[0])
"""


@pytest.mark.parametrize("body", ['b"N" * 5_000_000', 'b"(" * 9_000_000', 'b"]\\x94" * 3_000_000'])
def test_a_host_without_memory_is_told_so(body):
    import pctx_sandbox

    folders = [str(HERE.parent.parent / "python"), str(HERE), ":".join(pctx_sandbox.__path__)]
    done = subprocess.run([sys.executable, "-c", NO_ROOM, *folders, body], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "the result does not fit into this process's memory\n"), done.stderr
