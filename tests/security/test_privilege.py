"""A guest holds no privilege, and no way to get one back."""

import json
import os
import platform
import pwd
import subprocess
import time
from pathlib import Path

import pytest

STATUS = (
    "wanted = ('Cap', 'NoNew', 'Seccomp', 'Uid', 'Gid', 'Groups')\n"
    "print(*[line for line in open('/proc/self/status') if line.startswith(wanted)], sep='')\n"
)


def status_of(ended):
    return dict(line.split(":\t", 1) for line in ended.stdout.splitlines() if line)


@pytest.mark.parametrize("uid", ["1000", "0"])
def test_all_five_capability_sets_are_empty(inside, outside, powers, uid):
    held = status_of(inside(STATUS, "--uid", uid))
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert held[name] == "0" * 16, name
    assert held["NoNewPrivs"] == "1" and held["Seccomp"] == "2"
    assert held["Uid"].split() == [uid] * 4 and held["Gid"].split() == [uid] * 4
    control = outside([*powers, "grep", "CapEff", "/proc/self/status"]).stdout.split()
    assert int(control[1], 16) != 0


def test_securebits_are_locked(inside):
    code = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(bin(libc.prctl(27, 0, 0, 0, 0)), libc.prctl(28, 0, 0, 0, 0), ctypes.get_errno())\n"
        "print(libc.prctl(8, 1, 0, 0, 0), libc.prctl(47, 2, 0, 0, 0))  # keep capabilities, raise an ambient one\n"
        "print(libc.prctl(38, 0, 0, 0, 0), libc.prctl(39, 0, 0, 0, 0))  # undo and read no_new_privs\n"
    )
    bits, refused, errno, keep, ambient, undo, set_ = inside(code).stdout.split()
    # NOROOT, NO_SETUID_FIXUP, KEEP_CAPS locked, NO_CAP_AMBIENT_RAISE, all with their locks.
    assert int(bits, 2) & 0b11101111 == 0b11101111
    assert (refused, errno) == ("-1", "1")
    assert keep == "-1" and ambient == "-1" and undo == "-1" and set_ == "1"


def test_guest_cannot_change_its_ids(inside, outside, powers):
    code = (
        "import errno, os\n"
        "for act in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0),\n"
        "            lambda: os.setgroups([0]), lambda: os.seteuid(65534)):\n"
        "    try: act(); print('DONE')\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
    )
    assert set(inside(code).stdout.split()) <= {"EPERM", "EINVAL"}
    assert "DONE" in outside([*powers, "/usr/bin/python3", "-c", code]).stdout


def test_host_uid_is_neither_roots_nor_the_callers(sandbox_bin, layers, tmp_path):
    if not layers["subordinate-ids"]["on"]:
        pytest.skip(f"needs subordinate ids: {layers['subordinate-ids']['detail']}")
    # Seen from outside: the map of the box's user namespace, not what the guest says.
    process = subprocess.Popen([sandbox_bin, "run", "-q", "--", "sleep", "20"], stdin=subprocess.DEVNULL)
    try:
        uids = set()
        for _ in range(200):
            uids = uids_of_descendants(process.pid)
            if any(name == "sleep" for name, _ in uids):
                break
            time.sleep(0.02)
        (guest,) = {uid for name, uid in uids if name == "sleep"}
        assert guest not in (0, os.getuid())
        assert str(guest) in f"{layers['subordinate-ids']['detail']}" or guest > 65535
    finally:
        process.terminate()
        process.wait(10)


def uids_of_descendants(pid):
    found = set()
    try:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            lines = Path(f"/proc/{child}/status").read_text().splitlines()
            fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            found.add((fields["Name"], int(fields["Uid"].split()[0])))
            found |= uids_of_descendants(child)
    except OSError:
        pass
    return found


def test_capabilities_do_not_come_back_by_exec(inside):
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {STATUS!r}])"
    for uid in ("0", "1000"):
        held = status_of(inside(code, "--uid", uid))
        assert {held[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}


ADD_KEY, KEYCTL = (248, 250) if platform.machine() == "x86_64" else (217, 219)
# In a session keyring of its own, so that the tests leave no key with their caller: puts a key there, finds it and
# runs the command with it.
WITH_A_KEY = f"""
import ctypes, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.syscall({KEYCTL}, 1, None) < 0: sys.exit(f"no keyrings: errno {{ctypes.get_errno()}}")
libc.syscall({ADD_KEY}, b"user", b"pctx-planted", b"secret", 6, -3)
print(libc.syscall({KEYCTL}, 10, -3, b"user", b"pctx-planted", 0) > 0, flush=True)
sys.exit(subprocess.run(sys.argv[1:]).returncode)
"""
ENOKEY = 126


def test_keys_are_out_of_reach(inside, outside):
    code = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        f"for call in ((0, -3, 0), (11, -3, None, 0)):\n"
        f"    print(libc.syscall({KEYCTL}, *call) >= 0, ctypes.get_errno())\n"
        "print(bool(open('/proc/keys').read()))\n"
    )
    control = outside(["/usr/bin/python3", "-c", WITH_A_KEY, "/usr/bin/python3", "-c", code])
    if control.stderr.startswith("no keyrings"):
        pytest.skip(f"needs keyrings for the positive control ({control.stderr.strip()})")
    assert control.stdout == "True\nTrue 0\nTrue 0\nTrue\n", control
    ended = inside(code)
    assert ended.stdout == "False 1\nFalse 1\nFalse\n" and ended.denied("keyctl")


def test_session_keyring_of_the_caller_stays_outside_even_without_our_filter(sandbox_bin, outside, tmp_path):
    profile = tmp_path / "all.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []}))
    search = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        f"print(libc.syscall({KEYCTL}, 10, -3, b'user', b'pctx-planted', 0) > 0, ctypes.get_errno())\n"
    )
    planted = ["/usr/bin/python3", "-c", WITH_A_KEY]
    control = outside([*planted, "/usr/bin/python3", "-c", search])
    if control.stderr.startswith("no keyrings"):
        pytest.skip(f"needs keyrings for the positive control ({control.stderr.strip()})")
    assert control.stdout == "True\nTrue 0\n", control
    done = outside([*planted, sandbox_bin, "run", "--seccomp", profile, "--", "/usr/bin/python3", "-c", search])
    assert done.stdout == f"True\nFalse {ENOKEY}\n", done


def test_priority_of_the_caller_is_not_inherited_upwards(inside):
    code = (
        "import errno, os\n"
        "for act in (lambda: os.nice(-1), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),\n"
        "            lambda: os.setpriority(os.PRIO_PROCESS, 0, -5)):\n"
        "    try: act(); print('DONE')\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
        "print(os.nice(1) >= 1)\n"
    )
    *refused, control = inside(code).stdout.split()
    assert set(refused) <= {"EPERM", "EACCES"} and control == "True"


DEMOTE = """
import errno, os
SCHED_IDLE, ATTR = 5, bytes([48, 0, 0, 0, 5]) + bytes(43)
libc = __import__("ctypes").CDLL(None, use_errno=True)
def attr():
    if libc.syscall(314, 1, ATTR, 0): raise OSError(__import__("ctypes").get_errno(), "sched_setattr")
def io():
    if libc.syscall(251, 1, 1, 3 << 13): raise OSError(__import__("ctypes").get_errno(), "ioprio_set")
for act in (lambda: os.sched_setscheduler(1, SCHED_IDLE, os.sched_param(0)), attr, io,
            lambda: os.setpriority(os.PRIO_PROCESS, 1, 19), lambda: os.setpriority(os.PRIO_USER, 0, 19),
            lambda: os.sched_setaffinity(1, {min(os.sched_getaffinity(1))})):
    try: act(); print("done")
    except OSError as error: print(errno.errorcode[error.errno])
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="needs x86_64, whose call numbers it has")
def test_guest_cannot_make_init_wait_for_a_processor(inside, allow_all):
    """Whoever ends the box must get one, however many the guest wants. The control has no filter."""
    assert inside(DEMOTE).stdout.split() == ["EPERM"] * 6
    freely = ("--seccomp", allow_all, "--allow-degraded", "cgroups")
    assert inside(DEMOTE, *freely).stdout.split() == ["done"] * 6


@pytest.mark.root_only  # who else may be a real-time process is the host's matter
def test_precedence_of_the_caller_is_not_passed_on(inside, outside):
    def go_first():
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))

    code = "import os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"
    assert outside(code, preexec_fn=go_first).stdout.split()[0] == str(os.SCHED_FIFO)
    assert inside(code, preexec_fn=go_first).stdout == "0 0\n"
    assert outside(code, preexec_fn=lambda: os.nice(-5)).stdout == "0 -5\n"
    assert inside(code, preexec_fn=lambda: os.nice(-5)).stdout == "0 0\n"


def test_guest_cannot_get_user_namespaces_by_any_limit(inside):
    code = "print(open('/proc/sys/user/max_user_namespaces').read().strip())"
    assert inside(code).stdout == "0\n"


@pytest.mark.root_only  # an ordinary user cannot drop from its bounding set
def test_caller_with_an_empty_bounding_set_gets_a_box_and_is_told_what_it_costs(sandbox_bin, outside):
    """Services with CapabilityBoundingSet= and containers without capabilities are such callers, too."""
    try:
        user = pwd.getpwnam("pctx-test")
    except KeyError:
        pytest.skip("needs the account pctx-test, which 'make test' makes")
    someone = ["setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid), "--clear-groups"]
    run = [sandbox_bin, "run", "--json", "--", "true"]
    whole, emptied = (outside([*someone, *more, *run]) for more in ([], ["--bounding-set", "-all"]))
    assert whole.returncode == emptied.returncode == 0, emptied
    assert "newuidmap:" not in emptied.stderr
    layer = json.loads(emptied.stdout)["receipt"]["layers"]["subordinate-ids"]
    assert not layer["on"], layer
    if json.loads(whole.stdout)["receipt"]["layers"]["subordinate-ids"]["on"]:
        assert "bounding set" in layer["detail"], layer
        told = outside([*someone, "--bounding-set", "-all", sandbox_bin, "doctor"]).stdout
        assert "bounding set" in told, told


@pytest.mark.rootless_only
def test_caller_without_new_privileges_gets_a_box_and_is_told_what_it_costs(sandbox_bin, outside):
    """Services with NoNewPrivileges= are such callers: newuidmap is there and gains nothing."""
    run = [sandbox_bin, "run", "--json", "--", "true"]
    prefix = ["setpriv", "--no-new-privs"]
    assert outside([*prefix, "sed", "-n", "s/^NoNewPrivs:\t//p", "/proc/self/status"]).stdout == "1\n"
    done = outside([*prefix, *run])
    assert done.returncode == 0, done
    layer = json.loads(done.stdout)["receipt"]["layers"]["subordinate-ids"]
    assert not layer["on"], layer
    if json.loads(outside(run).stdout)["receipt"]["layers"]["subordinate-ids"]["on"]:
        assert "no_new_privs" in layer["detail"], layer


def test_umask_of_the_caller_does_not_decide(inside):
    code = "import os; print(oct(os.stat('/tmp').st_mode), oct(os.umask(0)))"
    for mask in (0o000, 0o077):
        assert inside(code, preexec_fn=lambda mask=mask: os.umask(mask)).stdout == "0o41777 0o22\n"
