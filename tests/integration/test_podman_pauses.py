"""A container of the Podman backend that somebody pauses: whoever waits for something in it wakes it up."""

import subprocess
import threading

import pctx_sandbox
import pytest
from pctx_sandbox import _backend, _broker
from test_podman import name, one, state  # noqa: F401 (name is a fixture)

BACKENDS = ("podman",)
pytestmark = pytest.mark.usefixtures("each_backend")


@pytest.fixture
def pause(name, skip_unless):  # noqa: F811
    """pause() pauses it; where Podman cannot, the test is skipped, but for what `meanwhile` still has to do."""

    def now(meanwhile=lambda: None):
        done = subprocess.run(["podman", "pause", name], capture_output=True, text=True, timeout=120)
        meanwhile()
        lacks = "cgroup v2, without which Podman pauses nothing for an ordinary user"
        skip_unless("cgroup V1" not in done.stderr, lacks)
        assert done.returncode == 0, done.stderr

    return now


@pytest.mark.parametrize("connections", ["kept", "new"])
def test_a_paused_container_is_woken_up(name, connections, pause):  # noqa: F811
    assert one() == 1
    if connections == "new":
        _broker.close_all()
    pause()
    assert one() == 1
    assert state(name) == "running"


def test_a_script_goes_on_after_a_pause(name, pause):  # noqa: F811
    """Whether it has begun by then or waits for its box: whoever waits for it wakes the container up."""
    assert one() == 1
    ended = []
    code = "import time; time.sleep(1); print('over')"
    thread = threading.Thread(target=lambda: ended.append(pctx_sandbox.run(code, timeout=120).stdout))
    thread.start()
    pause(meanwhile=thread.join)
    assert ended == ["over\n"]
    assert one() == 1  # the pause may have come after its end
    assert state(name) == "running"


def test_whoever_waits_for_a_worker_wakes_the_container_up_soon(name, pause):  # noqa: F811
    assert one() == 1
    lease = next(packet for backend, packet in _broker._prefetched if backend == "podman")
    connection = _broker.Connection(_backend.resolve("podman"))
    pause()
    connection.send(lease)
    assert connection.wait_for_lease(30).waits(connection.fd)  # a call's own patience is three times as long
    connection.discard()
    assert state(name) == "running"
