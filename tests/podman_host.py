"""Whether Podman works on this host at all, found without anything of ours: a container that does nothing.

One that is too old for the backend counts as none: that it says so is shown in src/backend/podman/podman_test.cc.
"""

import contextlib
import fcntl
import functools
import io
import os
import resource
import shutil
import subprocess
import tarfile

OLDEST = 4  # as in src/backend/podman/trouble.cc


def trouble():
    """What keeps Podman from starting a container here, or None."""
    return _looked()[0]


def command():
    """Podman with the container runtime that works here: the backend finds it out by itself, a service does not."""
    return ["podman", *_looked()[1]]


@functools.lru_cache(maxsize=1)
def _looked():
    options = []
    if shutil.which("podman") is None:
        return "Podman (apt-get install podman)", options
    version = subprocess.run(["podman", "--version"], capture_output=True, text=True, timeout=120).stdout.split()
    if version and int(version[-1].split(".")[0]) < OLDEST:
        return f"Podman {OLDEST}.0 or newer; this is {version[-1]}", options
    name = f"localhost/pctx-test-nothing-{os.getpid()}"
    try:
        words = _run(["podman", "import", "--quiet", "-", name], _root())
        if words is None:
            binds = ["--volume", "/usr:/usr:ro"]
            nothing = ["run", "--rm", "--network", "none", *_limits(), *binds, name, "/usr/bin/true"]
            words = _run(["podman", *nothing], b"")
            if words is not None and "hybrid" in words and shutil.which("runc"):
                options = ["--runtime", "runc"]
                words = _run(["podman", *options, *nothing], b"")
        subprocess.run(["podman", "rmi", "--force", name], capture_output=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        words = str(error)
    return words and f"a Podman that can start a container; this one says: {words}", options


@contextlib.contextmanager
def own_image():
    """A user's containers share one image, and tests remove it: no other suite's module has containers meanwhile."""
    with open(f"/tmp/pctx-test-image-{os.geteuid()}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(command, stdin):
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=120)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit status {done.returncode}"]
    return None if done.returncode == 0 else lines[-1][:300]


def _limits():
    """Some runtimes fail where they would have to raise a limit."""
    files = min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65536)
    processes = min(resource.getrlimit(resource.RLIMIT_NPROC)[1], 16384)
    return ["--ulimit", f"nofile={files}:{files}", "--ulimit", f"nproc={processes}:{processes}"]


def _root():
    """The host's links at the top of an empty root, so that programs below /usr find their libraries."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in ("bin", "lib", "lib64", "sbin"):
            if os.path.islink(f"/{name}"):
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, os.readlink(f"/{name}")
                tar.addfile(link)
    return archive.getvalue()
