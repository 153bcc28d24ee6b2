"""A thousand boxes in a row, each with twenty connections, leave nothing behind."""

import sys

import network_world
import pytest

pytestmark = pytest.mark.chaos

PROGRAM = """
import os, subprocess, sys, time
box, code = sys.argv[1:-1], sys.argv[-1]
def look():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            name = open(f"/proc/{pid}/comm").read()
            if name.startswith("pctx-relay"): found.append(os.readlink(f"/proc/{pid}/ns/net"))
        except OSError: pass
    here = os.readlink("/proc/self/ns/net")
    sockets = [line.split()[2] for line in open("/proc/net/sockstat") if line.startswith(("TCP:", "UDP:", "RAW:"))]
    return found.count(here), sockets
before = look()
for _ in range(1000):
    done = subprocess.run([*box, code], capture_output=True, text=True)
    assert done.stdout == "20\\n", done
time.sleep(3)
print(before == look(), before, look())
"""
GUEST = """
reached = 0
for _ in range(20):
    with socket.create_connection(("a.test", 80), timeout=10) as s:
        s.sendall(b"GET / HTTP/1.1\\r\\nHost: a.test\\r\\nConnection: close\\r\\n\\r\\n")
        while data := s.recv(4096): last = data
        reached += 1
print(reached)
"""


def test_a_thousand_boxes_leave_nothing_behind(world, sandbox_bin):
    world.names(network_world.RECORDS)
    box = [sandbox_bin, "run", "-q", "--network", "allow:a.test", "--", "python3", "-c"]
    done = world.run(sys.executable, "-c", PROGRAM, *box, network_world.PRELUDE + GUEST, timeout=800)
    assert done.stdout.startswith("True"), done
