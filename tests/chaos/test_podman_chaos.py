"""Calls through Podman while somebody kills, removes and pauses the container and takes its image away. Every call ends
with its value or one of our exceptions, the next one works, and nothing is left."""

import concurrent.futures
import os
import random
import subprocess
import threading
import time
from pathlib import Path

import podman_host
import pytest
from pctx_sandbox import SandboxError, sandbox

BACKENDS = ("podman",)
if podman_host.trouble():
    pytest.skip(f"needs {podman_host.trouble()}", allow_module_level=True)
pytestmark = [
    pytest.mark.chaos,
    pytest.mark.usefixtures("each_backend"),
]
CALLS = int(os.environ.get("PCTX_CHAOS_CALLS", "300"))
SEED = int(os.environ.get("PCTX_CHAOS_SEED", str(random.randrange(1 << 32))))
DEEDS = (["kill"], ["rm", "--force"], ["pause"], ["stop", "--time", "1"], ["image"])


def podman(*words):
    return subprocess.run(["podman", *words], capture_output=True, text=True, timeout=120)


def do(deed, name):
    if deed == ["image"]:
        image = podman("inspect", "--format", "{{.Image}}", name).stdout.strip()
        return podman("rmi", "--force", image) if image else None
    return podman(*deed, name)


@sandbox(timeout_sec=60)
def work(number):
    import time

    time.sleep(number % 3 / 100)
    return number


def call(number):
    try:
        return "value" if work(number) == number else "wrong"
    except SandboxError as error:
        return type(error).__name__


def doors():
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == os.geteuid():
                found += [int(entry.name)] * ((entry / "comm").read_text() == "pctx-door\n")
        except OSError:
            continue
    return found


def test_whatever_is_done_to_the_container_every_call_ends_well():
    name = os.environ["PCTX_SANDBOX_CONTAINER"]
    draw = random.Random(SEED)
    over = threading.Event()
    before = set(doors())

    def disturb():
        while not over.wait(draw.uniform(0.5, 2.0)):
            do(draw.choice(DEEDS), name)

    troublemaker = threading.Thread(target=disturb)
    troublemaker.start()
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as callers:
            ended = list(callers.map(call, range(CALLS)))
    finally:
        over.set()
        troublemaker.join()
    assert "wrong" not in ended and len(ended) == CALLS, f"seed {SEED}"
    assert ended.count("value") > 0, f"seed {SEED}: {ended[:20]}"
    assert work(7) == 7
    podman("rm", "--force", name)
    deadline = time.monotonic() + 60
    while set(doors()) - before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert set(doors()) - before == set(), f"seed {SEED}: the door of a relay stays behind"
