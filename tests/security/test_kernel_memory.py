"""What the kernel keeps for a guest and charges to nobody is refused, or bounded by another limit. The control is a box
with a profile that allows every call: there the kernel grants it."""

import json
import os
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src"

E2BIG, EPERM, ENOPROTOOPT = 7, 1, 92
REFUSED = {
    "large access lists of files in memory": (["acl", "65536"], "setxattr", E2BIG),
    "policies for pages of files in memory": (["policies", "64"], "mbind", EPERM),
    "filters of sockets": (["program", "26"], "setsockopt", EPERM),
    "programs that choose among sockets": (["program", "51"], "setsockopt", EPERM),
    "pages lent to a socket": (["option", "zerocopy"], "setsockopt", ENOPROTOOPT),
    "keys of a socket": (["option", "key"], "setsockopt", ENOPROTOOPT),
    "labels of the host's": (["option", "label"], "setsockopt", ENOPROTOOPT),
    "sources of a group": (["option", "sources"], "setsockopt", ENOPROTOOPT),
    "threads that wait as for the exec of a child": (["waiting-thread"], "clone", EPERM),
}


@pytest.mark.parametrize("what", REFUSED)
def test_guest_cannot_have(attack, allow_all, what):
    words, call, code = REFUSED[what]
    ended = attack("uncharged", *words)
    assert ended.stdout == f"refused {call} {code}\n" and ended.denied(call)
    control = attack("uncharged", *words, options=("--seccomp", allow_all, "--allow-degraded", "cgroups"))
    assert control.stdout.startswith("had "), control.stdout


@pytest.mark.parametrize("kind", ["reset", "unbound"])
def test_guest_cannot_park_data_in_sockets_that_no_list_has(attack, kind):
    """What they have received is charged to nobody on cgroup v1, and where there are no cgroups."""
    ended = attack("unlisted", kind, "300", "20", options=("--memory", "64M"))
    assert (ended.kind, ended.limit) == ("out_of_memory", "memory")
    control = attack("unlisted", kind, "8", "0", options=("--memory", "512M"))
    assert (control.kind, control.stdout) == ("exited", "held\n")


def test_sockets_that_are_still_to_be_used_cost_little(inside):
    code = "import socket, time\nheld = [socket.socket() for _ in range(100)]\ntime.sleep(0.5); print(len(held))\n"
    assert inside(code, "--memory", "128M").stdout == "100\n"


def test_guest_may_have_small_access_lists(attack):
    """As cp and tar copy them."""
    assert attack("uncharged", "acl", "256").stdout == "had 31\n"


def test_queues_of_watchers_are_bounded_by_the_memory_limit(attack, without_cgroups):
    """A queue holds 8 MiB of events."""
    assert attack("uncharged", "instances", "100", options=("--memory", "128M")).stdout == "had 2\n"
    assert attack("uncharged", "instances", "100", options=("--memory", "256M")).stdout == "had 4\n"
    assert attack("uncharged", "instances", "100", options=("--memory", "1G")).stdout == "had 8\n"


def test_guest_has_no_huge_pages_where_no_cgroup_counts_them(attack, attacker, outside, without_cgroups):
    """/proc shows what is mapped of them, and the kernel keeps them whole."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("needs a kernel that gives huge pages to those who ask (transparent_hugepage)")
    assert outside([attacker("uncharged"), "huge-pages", "4"]).stdout == "had 8\n"
    assert attack("uncharged", "huge-pages", "4").stdout == "had 0\n"


FILTERS = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure): _fields_ = [("size", ctypes.c_ushort), ("code", ctypes.c_void_p)]
allow = ctypes.c_uint64(0x7fff0000 << 32 | 6)  # one instruction
program = Program(1, ctypes.addressof(allow))
libc.prctl(38, 1, 0, 0, 0)  # no_new_privs
had = 0
while had < 100 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0: had += 1
print(had, ctypes.get_errno())
"""


def test_guest_has_so_many_filters_of_its_own(inside, outside):
    """Also a browser's. What they take counts against a limit of the whole host's, and for nobody."""
    assert outside(FILTERS).stdout == "100 0\n"
    ended = inside(FILTERS)
    assert ended.stdout == "64 22\n"
    assert "64 filters" in ended.denied("prctl")[0]["reason"]
    twice = f"import os, subprocess, sys\nfor _ in range(2): subprocess.run([sys.executable, '-c', {FILTERS!r}])"
    assert inside(twice).stdout == "64 22\n0 22\n", "of the run, not of a process"


UNDER_WAY = """
import os, shutil, socket, tempfile
def told(call):
    try: call()
    except OSError as error: return error.errno
    return 0
file = tempfile.NamedTemporaryFile()
file.write(bytes(8192))
file.flush()
here, there = os.pipe()
print(told(lambda: os.splice(file.fileno(), there, 1, 0)), told(lambda: os.sendfile(there, file.fileno(), 0, 1)),
      told(lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)), told(socket.socketpair),
      told(lambda: shutil.copyfile(file.name, file.name + ".copy")))
"""


def test_what_is_under_way_keeps_nothing_that_nobody_counts(inside, allow_all, without_cgroups):
    """A byte of a file in a pipe keeps its page when the file has gone, and datagrams wait when their sender has."""
    EINVAL, ESOCKTNOSUPPORT = 22, 94
    assert inside(UNDER_WAY, "--seccomp", allow_all, "--allow-degraded", "cgroups").stdout == "0 0 0 0 0\n"
    ended = inside(UNDER_WAY)
    assert ended.stdout == f"{EINVAL} {EINVAL} {ESOCKTNOSUPPORT} 0 0\n"
    assert ended.denied("socketpair")


BEYOND = """
import os
def told(call):
    try: call()
    except OSError as error: return error.errno
    return 0
def park():
    there = os.memfd_create("park")
    for _ in range(100): os.write(there, bytes(1 << 20))
print(told(park), told(lambda: os.sched_setaffinity(0, range(os.cpu_count()))), len(os.sched_getaffinity(0)))
"""


@pytest.fixture
def like_dockers(tmp_path):
    """A profile that lists what a program may do, as Docker's does: whatever limits the calls dodge."""
    tmp_path.chmod(0o755)
    listed = re.findall(r'^\{"(\w+)"', (SOURCE / "plan" / "syscall_policy.inc").read_text(), re.MULTILINE)
    allowed = {"names": [name for name in listed if name != "clone3"], "action": "SCMP_ACT_ALLOW"}
    absent = {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [allowed, absent]}))
    return profile


def test_a_profile_takes_no_limit_away(inside, pctx, like_dockers, without_cgroups):
    """Where limits are bound by a watchdog and by affinity, the filter is part of that."""
    options = ["--seccomp", like_dockers, "--memory", "64M", "--cpus", "1"]
    let_go = inside(BEYOND, *options, "--allow-degraded", "cgroups")
    assert let_go.stdout == f"0 0 {len(os.sched_getaffinity(0))}\n", "the control: both limits are dodged"
    limits = let_go.receipt["limits"]
    assert limits["memory"]["by"].startswith("not bound: the profile allows ")
    if os.cpu_count() > 1:
        assert limits["cpus"]["by"] == "not bound: the profile allows sched_setaffinity"

    ended = inside(BEYOND, *options)
    assert ended.kind == "exited" and ended.stdout == ("1 1 1\n" if os.cpu_count() > 1 else "1 0 1\n")
    assert "although the profile allows it" in ended.denied("memfd_create")[0]["reason"]
    assert ended.receipt["limits"]["memory"]["by"] == "watchdog"
    says = f"--seccomp {like_dockers}: refused although it allows them, or limits would not bind without cgroups: "
    assert says in pctx("run", *options, "--", "true").stderr
