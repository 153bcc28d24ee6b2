"""The container of the Podman backend: how it starts, what it has, and that `podman` may do to it whatever it likes."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import podman_host
import pytest
from pctx_sandbox import _broker, sandbox
from waiting import wait_until

BACKENDS = ("podman",)
if podman_host.trouble():
    pytest.skip(f"needs {podman_host.trouble()}", allow_module_level=True)
pytestmark = pytest.mark.usefixtures("each_backend")


def podman(*words, check=True):
    done = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert not check or done.returncode == 0, f"podman {' '.join(words)}: {done.stderr}"
    return done.stdout.strip()


@pytest.fixture
def name():
    return os.environ["PCTX_SANDBOX_CONTAINER"]


@pytest.fixture
def place():
    return Path(os.environ["PCTX_SANDBOX_SOCKET"] + ".podman")


def state(name):
    return podman("inspect", "--format", "{{.State.Status}}", name, check=False)


@sandbox
def one():
    return 1


# --- its life ---------------------------------------------------------------------------------------------------------


def test_the_container_outlives_the_caller_that_started_it(name, tmp_path):
    podman("rm", "--force", name)
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""
            from pctx_sandbox import sandbox

            @sandbox(backend="podman")
            def two():
                return 2

            if __name__ == "__main__":
                print(two())
        """)
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=180)
    assert done.stdout == "2\n", done.stderr
    assert state(name) == "running"


@pytest.mark.parametrize(
    "command",
    [
        ["stop", "--time", "2"],
        ["kill"],
        ["rm", "--force"],
        ["restart", "--time", "1"],
    ],
    ids=lambda command: command[0],
)
@pytest.mark.parametrize("connections", ["kept", "new"])
def test_the_next_call_works_after(name, command, connections):
    assert one() == 1
    if connections == "new":
        _broker.close_all()
    podman(*command, name)
    assert one() == 1
    assert state(name) == "running"


def test_no_device_of_the_host_changes_hands(name):
    """crun gives a container's standard input to its first user: as root, what everybody has as /dev/null."""
    podman("rm", "--force", name)
    before = os.stat("/dev/null")
    assert one() == 1
    after = os.stat("/dev/null")
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)
    assert "pipe:" in podman("exec", name, "/usr/bin/readlink", "/proc/1/fd/0")


def relays_outside():
    """Doors of containers, and the relays behind them, by pid."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and entry.stat().st_uid == os.geteuid():
                words = (entry / "comm").read_text().strip()
                if words in ("pctx-door", "pctx-relay"):
                    found[int(entry.name)] = words
        except OSError:
            continue
    return found


@pytest.mark.parametrize("loss", ["restart", "start", "door"])
def test_a_lost_way_to_the_relay_is_found_again(name, loss):
    """A container that somebody else started has none; nor has one whose door outside was killed."""

    @sandbox(allow_network=["198.51.100.7:80"])
    def named():
        return "ran"

    before = set(relays_outside())
    podman("rm", "--force", name)
    assert named() == "ran"
    if loss == "restart":
        podman("restart", "--time", "1", name)
    elif loss == "start":
        podman("stop", "--time", "2", name)
        podman("start", name)
    else:
        for pid, words in relays_outside().items():
            if pid not in before and words == "pctx-door":
                os.kill(pid, 9)
        assert wait_until(lambda: "pctx-door" not in [w for p, w in relays_outside().items() if p not in before])
        _broker.close_all()
    assert named() == "ran" and state(name) == "running"


def test_the_image_may_go_at_any_time(name):
    assert one() == 1
    image = podman("inspect", "--format", "{{.Image}}", name)
    podman("rmi", "--force", image)  # takes the container along
    assert one() == 1
    assert podman("inspect", "--format", "{{.Image}}", name) != image


def test_an_image_of_another_version_is_replaced(name, place, tmp_path):
    assert one() == 1
    podman("rm", "--force", name)
    podman("rmi", "--force", (place / "image").read_text().split("\n")[1])
    archive = tmp_path / "empty.tar"
    subprocess.run(["tar", "-cf", str(archive), "-T", "/dev/null"], check=True)
    older = podman("import", "--quiet", str(archive), "localhost/pctx-sandbox-agent:latest").removeprefix("sha256:")
    (place / "image").write_text(f"0.0.1 of long ago\n{older}")
    assert one() == 1
    image = (place / "image").read_text().split("\n")[1]
    assert image != older and podman("inspect", "--format", "{{.Image}}", name) == image
    assert older not in podman("images", "--all", "--no-trunc", "--format", "{{.Id}}")


def test_a_reboot_costs_no_second_image(name, place):
    """What lies in the runtime folder goes with a reboot; the image is found again."""
    assert one() == 1
    before = (place / "image").read_text()
    podman("rm", "--force", name)
    (place / "image").unlink()
    assert one() == 1
    assert (place / "image").read_text() == before


@pytest.mark.parametrize("container", ["removed", "running"])
def test_its_folder_may_go_under_a_process_that_lives_on(name, place, tmp_path, container):
    """A logout takes the runtime folder along; a container that still runs has a socket that nobody can find."""
    assert one() == 1
    lent = sandbox(mnt_dir=tmp_path)(lambda: __import__("pathlib").Path("/mnt/file").write_text("x"))
    assert lent() == 1
    if container == "removed":
        podman("rm", "--force", name)
    shutil.rmtree(place)
    _broker.close_all()
    assert one() == 1 and lent() == 1
    assert (tmp_path / "file").read_text() == "x"


def test_a_half_started_container_is_replaced(name, place):
    podman("rm", "--force", name)
    podman("create", "--name", name, "--network", "none", (place / "image").read_text().split("\n")[1], "/pctx-sandbox")
    assert state(name) == "created"
    assert one() == 1
    assert state(name) == "running"


def test_a_container_that_cannot_serve_is_explained(pctx, name, place, monkeypatch):
    """Images of the user's own: one that is not there, and one with nothing in it."""
    archive = place / "empty.tar"
    empty = place / "empty"
    empty.mkdir()
    subprocess.run(["tar", "-C", str(empty), "-cf", str(archive), "."], check=True)
    image = podman("import", "--quiet", str(archive), "localhost/pctx-test-empty")
    try:
        podman("rm", "--force", name)
        for named in ("localhost/pctx-test-nowhere", "localhost/pctx-test-empty"):
            monkeypatch.setenv("PCTX_SANDBOX_IMAGE", named)
            done = pctx("run", "--", "/usr/bin/python3", "--version")
            assert done.returncode != 0 and "Python" not in done.stdout, named
            assert done.stderr.startswith("pctx-sandbox: "), done.stderr
    finally:
        podman("rmi", "--force", image, check=False)
    monkeypatch.delenv("PCTX_SANDBOX_IMAGE")
    assert one() == 1


def test_our_own_verbs_stop_it_and_show_it(pctx, name):
    assert one() == 1
    assert pctx("status", "--backend", "podman", "--json").json()["running"]
    assert pctx("stop", "--backend", "podman").returncode == 0
    assert wait_until(lambda: state(name) == "exited")
    assert one() == 1


def test_nothing_is_built_or_started_twice(pctx, name):
    assert one() == 1
    before = podman("inspect", "--format", "{{.Id}}", name)
    answer = pctx("serve", "--backend", "podman", "--json")
    assert answer.json()["notices"] == [] and answer.stderr == ""
    assert podman("inspect", "--format", "{{.Id}}", name) == before


def test_an_interpreter_outside_the_system_is_lent(name):
    """The container that runs lacks it, and is started again with it."""
    assert one() == 1
    folder = Path(tempfile.mkdtemp(prefix="pctx-t-", dir=Path.home()))
    try:
        folder.chmod(0o755)
        python = folder / "prefix/bin" / os.path.basename(os.path.realpath(sys.executable))
        python.parent.mkdir(parents=True)
        shutil.copy(os.path.realpath(sys.executable), python)
        script = folder / "script.py"
        script.write_text(
            "from pctx_sandbox import sandbox\n\n\n"
            "@sandbox\ndef which():\n    import sys\n\n    return sys.executable\n\n\n"
            "if __name__ == '__main__':\n    print(which())\n"
        )
        packages = [path for path in sys.path if path]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(packages)}
        done = subprocess.run([python, script], capture_output=True, text=True, timeout=180, env=env)
        assert done.stdout.strip() == str(python), done.stderr
    finally:
        shutil.rmtree(folder)
    assert one() == 1


def test_environments_are_found_after_the_cache_was_removed(name, tmp_path):
    """A container holds the folder that it was lent, not its name: one that is made anew is another."""
    tmp_path.chmod(0o755)
    script = tmp_path / "script.py"
    script.write_text(
        "from pctx_sandbox import sandbox\n\n\n"
        "@sandbox(dependencies=['six'])\ndef which():\n    import six\n\n    return six.__name__\n\n\n"
        "if __name__ == '__main__':\n    print(which())\n"
    )
    env = os.environ | {"PCTX_SANDBOX_CACHE_DIR": str(tmp_path / "cache")}
    for number in range(2):
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, env=env)
        assert done.stdout == "six\n", done.stderr
        (tmp_path / "cache").rename(tmp_path / f"removed-{number}")
    podman("rm", "--force", name)  # the next one has none of it
    assert one() == 1


# --- what it has ------------------------------------------------------------------------------------------------------


@pytest.fixture
def inside(name):
    assert one() == 1
    return int(podman("inspect", "--format", "{{.State.Pid}}", name))


def test_it_has_no_rights_and_namespaces_of_its_own(inside):
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{inside}/status").read_text().splitlines())
    for capabilities in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[capabilities], 16) == 0, capabilities
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2"
    assert 0 not in map(int, status["Uid"].split())
    if os.geteuid() == 0:
        for kind in ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup"):
            assert os.readlink(f"/proc/{inside}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}"), kind


def test_there_is_nothing_in_it(name, inside, tmp_path):
    """What a guest that has left its box would find: the system, read-only, and no network."""
    seen = podman(
        "exec",
        name,
        "/usr/bin/python3",
        "-c",
        textwrap.dedent("""
        import json, os
        def can_write(path):
            try:
                open(path + "/probe", "w").close()
            except OSError:
                return False
            return True
        print(json.dumps({
            "top": sorted(os.listdir("/")), "home": os.listdir("/home"), "tmp": os.listdir("/tmp"),
            "devices": sorted(line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]),
            "writable": [each for each in ("/", "/usr", "/etc", "/tmp", "/run/pctx-support") if can_write(each)],
            "environment": dict(os.environ)}))
    """),
    )
    seen = json.loads(seen)
    assert set(seen["top"]) - {"root"} <= {
        "bin", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "nix", "opt", "pctx-sandbox", "proc", "run",
        "sbin", "sys", "tmp", "usr", "var"
    }  # fmt: skip
    assert seen["home"] in ([], [Path.home().name]) and seen["tmp"] == [] and seen["writable"] == []
    assert seen["devices"] == ["lo"]
    assert str(tmp_path) not in json.dumps(seen["environment"])


def test_a_file_of_the_system_that_is_replaced_breaks_no_box(name, place, inside):
    """Whoever installs a package replaces /etc/ld.so.cache: copies are bound, and no file of the host's own."""
    mounts = json.loads(podman("inspect", "--format", "json", name))[0]["Mounts"]
    files = [mount["Source"] for mount in mounts if os.path.isfile(mount["Source"])]
    assert files and all(source.startswith(f"{place}/system/") for source in files), files


def test_its_folder_is_for_this_user_only(place, inside):
    assert stat.S_IMODE(place.stat().st_mode) == 0o700 and place.stat().st_uid == os.geteuid()
    sockets = [path for path in (place / "run").iterdir() if path.suffix == ".sock"]
    assert [path.name.startswith("broker-") for path in sockets] == [True]
    assert stat.S_IMODE(sockets[0].stat().st_mode) == 0o600


def test_the_way_to_the_relay_has_no_name(name, inside):
    """The Broker has it; a guest that has left its box finds nothing to connect to."""
    found = podman("exec", name, "/usr/bin/python3", "-c", "import os; print(os.listdir('/run/pctx'))")
    assert "door" not in found and "broker" in found


@pytest.mark.root_only
def test_its_ids_are_nobodys(inside):
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{inside}/status").read_text().splitlines())
    assert set(map(int, status["Uid"].split())) == {0x70800000 + 1000}
    layer = one.run().receipt["layers"]["subordinate-ids"]
    assert layer["on"] and str(0x70800000 + 1000) in layer["detail"]


@pytest.mark.root_only
def test_it_has_limits_of_its_own(name, inside):
    limits = json.loads(podman("inspect", "--format", "json", name))[0]["HostConfig"]
    assert limits["Memory"] > 0 and limits["PidsLimit"] > 0 and limits["NanoCpus"] > 0


def test_limits_of_the_container_are_named_or_refused(pctx, name, monkeypatch):
    """Memory, CPUs, processes and disks. What the user names and Podman cannot set is an error, not a warning."""
    monkeypatch.setenv("PCTX_SANDBOX_CONTAINER_LIMITS", "memory=1G,cpus=1,pids=512,io-read=50M,io-write=20M")
    done = pctx("run", "-q", "--json", "--", "true")
    if done.returncode == 125:
        assert "may not set the container's limits" in done.stdout and "cgroup v2" in done.stdout, done.stdout
        assert os.geteuid() != 0 and state(name) != "running"
    else:
        words = done.json()["receipt"]["backend"]["limits"]
        assert words.startswith("memory 1 GiB, 1 CPUs, 512 processes, disks read 50 MiB a second"), words
        limits = json.loads(podman("inspect", "--format", "json", name))[0]["HostConfig"]
        assert (limits["Memory"], limits["NanoCpus"], limits["PidsLimit"]) == (1 << 30, 10**9, 512)
        for direction, rate in (("Read", 50 << 20), ("Write", 20 << 20)):
            assert {each["Rate"] for each in limits[f"BlkioDevice{direction}Bps"]} == {rate}
    monkeypatch.setenv("PCTX_SANDBOX_CONTAINER_LIMITS", "memory=lots")
    done = pctx("run", "--", "true")
    assert done.returncode == 125 and "memory=lots" in done.stderr and "hint: write PCTX_SANDBOX_CON" in done.stderr
    monkeypatch.delenv("PCTX_SANDBOX_CONTAINER_LIMITS")
    assert one.run().receipt["backend"]["limits"].startswith(("memory ", "processes by an rlimit"))


# --- a full disk ------------------------------------------------------------------------------------------------------


def on_a_small_disk(command, folder, megabytes, env):
    """The command in a mount namespace where `folder` is a disk of that size."""
    line = f'mount -t tmpfs -o size={megabytes}m,mode=0755 small {folder} && exec "$@"'
    return subprocess.run(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", line, "sh", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=180,
        env=os.environ | env,
    )


@pytest.mark.root_only
def test_a_full_disk_below_podmans_storage_is_explained(sandbox_bin, tmp_path):
    """There is no room for the image; with room, the same storage takes it."""
    storage, socket = tmp_path / "storage", tmp_path / "s"
    storage.mkdir()
    (tmp_path / "storage.conf").write_text(
        f'[storage]\ndriver = "vfs"\ngraphroot = "{storage}/graph"\nrunroot = "{storage}/run"\n'
    )
    env = {
        "CONTAINERS_STORAGE_CONF": str(tmp_path / "storage.conf"),
        "PCTX_SANDBOX_SOCKET": str(socket),
        "PCTX_SANDBOX_CONTAINER": f"pctx-full-{os.getpid()}",
    }
    done = on_a_small_disk([sandbox_bin, "run", "--", "true"], storage, 3, env)
    assert done.returncode == 125 and "is full" in done.stderr, done.stderr
    assert "hint: free some space: podman system prune" in done.stderr
    archive = tmp_path / "large.tar"
    subprocess.run(["tar", "-cf", str(archive), "-C", os.path.dirname(sandbox_bin), "pctx-sandbox"], check=True)
    for megabytes, status in ((3, False), (64, True)):
        room = on_a_small_disk(["podman", "import", "--quiet", archive, "pctx-test-room"], storage, megabytes, env)
        assert (room.returncode == 0) == status, room.stderr


@pytest.mark.root_only
def test_a_full_disk_below_the_copies_is_explained(sandbox_bin, name, place, tmp_path):
    """What does not fit is said before the run; the folder is as it was, and the next call works."""
    assert one() == 1
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "large").write_bytes(bytes(8 << 20))
    done = on_a_small_disk([sandbox_bin, "run", "--mnt", folder, "--", "true"], place / "lent", 2, {})
    assert done.returncode == 125 and "No space left on device" in done.stderr, done.stderr
    assert (folder / "large").stat().st_size == 8 << 20
    podman("rm", "--force", name)  # one that was started from there would keep that disk
    assert one() == 1


# --- without it -------------------------------------------------------------------------------------------------------


def test_without_podman_the_install_command_is_named(pctx, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("PCTX_SANDBOX_SOCKET", os.environ["PCTX_SANDBOX_SOCKET"] + ".other")
    done = pctx("run", "--", "true")
    assert done.returncode == 125
    assert "Podman is not installed\nhint: " in done.stderr and "install" in done.stderr
    shutil.rmtree(os.environ["PCTX_SANDBOX_SOCKET"] + ".podman", ignore_errors=True)


def test_a_podman_that_is_too_old_is_refused_before_anything_is_started(pctx, monkeypatch, tmp_path):
    """The Podman of this host, but for the version that it names."""
    old = tmp_path / "podman"
    real = shutil.which("podman")
    old.write_text(f'#!/bin/sh\n[ "$1" = info ] || exec {real} "$@"\n{real} "$@" | sed "s/^[0-9][^ ]*/3.4.4/"\n')
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("PCTX_SANDBOX_SOCKET", os.environ["PCTX_SANDBOX_SOCKET"] + ".old")
    monkeypatch.setenv("PCTX_SANDBOX_CONTAINER", os.environ["PCTX_SANDBOX_CONTAINER"] + "-old")
    done = pctx("run", "--", "true")
    assert done.returncode == 125 and "Podman 3.4.4 is too old: 4.0 or newer is needed\nhint: " in done.stderr
    assert state(os.environ["PCTX_SANDBOX_CONTAINER"]) == ""
    found = {each["name"]: each for each in pctx("doctor", "--json").json()["backends"]}
    assert not found["podman"]["usable"] and found["podman"]["why"].startswith("Podman 3.4.4 is too old")
    shutil.rmtree(os.environ["PCTX_SANDBOX_SOCKET"] + ".podman", ignore_errors=True)
    # The same with its own version.
    old.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
    assert {each["name"]: each for each in pctx("doctor", "--json").json()["backends"]}["podman"]["usable"]


def test_doctor_knows_the_backends(pctx, monkeypatch):
    found = {each["name"]: each for each in pctx("doctor", "--json").json()["backends"]}
    assert found["podman"]["usable"] and found["podman"]["why"].startswith("Podman ")
    monkeypatch.setenv("PATH", "/nonexistent")
    report = pctx("doctor", "--json").json()
    found = {each["name"]: each for each in report["backends"]}
    assert not found["podman"]["usable"] and "install" in found["podman"]["fix"]
    assert report["auto"]["backend"] == "namespaces"


def test_a_run_dies_with_the_one_who_started_it(sandbox_bin, name, tmp_path):
    """kill -9 to the caller ends the box inside, whatever Podman thinks of its session."""
    before = one()
    assert before == 1
    with open(tmp_path / "words", "wb") as words:
        process = subprocess.Popen(
            [sandbox_bin, "run", "-q", "--timeout", "300s", "--", "sh", "-c", "echo started; exec sleep 271"],
            stdout=subprocess.PIPE,
            stderr=words,
            stdin=subprocess.DEVNULL,
        )
    assert process.stdout.readline() == b"started\n", (tmp_path / "words").read_text()
    assert wait_until(lambda: "sleep 271" in podman("top", name, "args", check=False))
    process.kill()
    process.wait()
    process.stdout.close()
    assert wait_until(lambda: "sleep 271" not in podman("top", name, "args", check=False))
    assert one() == 1
