"""The filter: what is not on the list does not reach the kernel, by whatever door. The control is the same box with an
OCI profile that allows everything: there the answer comes from the kernel and no denial is recorded."""

import json
import os
import platform
import re
from pathlib import Path

import pytest
from conftest import PYTHON

EPERM, ENOSYS = 1, 38
SOURCE = (Path(__file__).resolve().parent.parent / "payloads/syscalls.c").read_text()
NAMES = re.findall(r'^    \{"(\w+)", ', SOURCE, re.M)
if platform.machine() != "x86_64":
    NAMES = [name for name in NAMES if name not in ("iopl", "ioperm", "modify_ldt")]
NAMESPACES = [
    f"{call}:{kind}"
    for call in ("unshare", "unshare-high", "clone", "clone-high")
    for kind in ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
]


def answers(ended):
    assert ended.kind == "exited", ended.outcome
    return {name: int(code) for name, code in (line.split() for line in ended.stdout.splitlines())}


@pytest.fixture(scope="module")
def refused(attack):
    return attack("syscalls")


@pytest.fixture(scope="module")
def allowed(attack, allow_all):
    return attack("syscalls", options=["--seccomp", allow_all, "--allow-degraded", "cgroups"])


@pytest.mark.parametrize("name", NAMES)
def test_guest_cannot_call(refused, allowed, name):
    assert answers(refused)[name] == EPERM
    (denial,) = refused.denied(name) or [{}]
    assert denial.get("answer") == "EPERM" or len(refused.receipt["denials"]) >= 32, refused.receipt["denials"]
    assert allowed.denied(name) == []


def test_answers_of_the_kernel_differ_from_those_of_the_filter(allowed):
    reached = [name for name, code in answers(allowed).items() if code not in (EPERM, ENOSYS)]
    assert {"setns", "io_uring_enter", "bpf", "keyctl", "process_madvise"} & set(reached)
    assert len(reached) > 15


@pytest.mark.parametrize("what", NAMESPACES)
def test_guest_cannot_make_a_namespace_by(refused, what):
    assert answers(refused)[what] == EPERM


def test_namespaces_can_be_made_outside(outside, powers, attacker):
    shown = dict(line.split() for line in outside([*powers, attacker("namespaces")]).stdout.splitlines())
    assert shown and set(shown.values()) == {"0"}


def test_clone3_does_not_exist_in_the_box(refused):
    # EPERM would break glibc, which falls back to clone for ENOSYS only.
    assert answers(refused)["clone3"] == ENOSYS


def test_unknown_call_does_not_exist_in_the_box(refused):
    assert answers(refused)["unknown"] == ENOSYS


@pytest.mark.parametrize("door", ["i386", "x32"])
def test_foreign_call_kills_the_guest(attack, outside, attacker, door):
    if platform.machine() != "x86_64":
        pytest.skip("needs x86_64: other machines have one way into the kernel")
    control = outside([attacker("foreign"), door])
    if control.returncode not in (0, 3):
        pytest.skip(f"needs a kernel that takes {door} calls at all")
    ended = attack("foreign", door)
    assert (ended.kind, ended.outcome["signal"], ended.status) == ("denied", 31, 159)
    assert ended.stdout == ""


def test_denial_names_call_and_path(inside):
    code = "import ctypes; ctypes.CDLL(None).mount(b'none', b'/planted/target', b'tmpfs', 0, None)"
    (denial,) = inside(code).denied("mount")
    assert "not on the list" in denial.pop("reason")
    assert denial == {"syscall": "mount", "detail": "/planted/target", "answer": "EPERM", "count": 1}


def test_denials_are_counted_once_per_kind_and_bounded(inside):
    code = (
        "import ctypes; libc = ctypes.CDLL(None)\n"
        "for n in range(300): libc.mount(b'none', b'/target%d' % (n % 200), b'tmpfs', 0, None)\n"
        "for n in range(20): libc.chroot(b'/same')\n"
    )
    ended = inside(code)
    assert len(ended.receipt["denials"]) <= 128
    listed = sum(denial["count"] for denial in ended.receipt["denials"])
    assert listed < 320 and listed + ended.receipt["denials_left_out"] == 320


def test_denied_path_is_shown_harmlessly(inside):
    code = "import ctypes; ctypes.CDLL(None).chroot(b'/\\x1b[31m\\n\\xff' + b'x' * 5000)"
    (denial,) = inside(code).denied("chroot")
    assert "\x1b" not in denial["detail"] and "\n" not in denial["detail"] and len(denial["detail"]) < 1100


def test_denied_path_may_be_no_memory_at_all(inside):
    code = "import ctypes; print(ctypes.CDLL(None).chroot(ctypes.c_void_p(1)))"
    ended = inside(code)
    assert ended.stdout == "-1\n" and ended.denied("chroot")[0]["detail"] == ""


def test_guest_cannot_have_a_listener_of_its_own(inside):
    code = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "class Filter(ctypes.Structure): _fields_ = [('code', ctypes.c_uint32), ('k', ctypes.c_uint32)]\n"
        "class Program(ctypes.Structure): _fields_ = [('len', ctypes.c_uint16), ('filter', ctypes.POINTER(Filter))]\n"
        "allow = Filter(6, 0x7fff0000); program = Program(1, ctypes.pointer(allow))\n"
        "for flags in (8, 8 | 1 << 40, 0):\n"
        "    print(libc.syscall(317, 1, ctypes.c_ulong(flags), ctypes.byref(program)), ctypes.get_errno())\n"
    )
    if platform.machine() != "x86_64":
        code = code.replace("317", "277")
    lines = inside(code).stdout.splitlines()
    # A further filter without a listener is fine: it can only take away.
    assert lines[0] == "-1 1" and lines[1].startswith("-1") and lines[2].startswith("0")


def test_listener_above_us_costs_the_record_of_refusals_and_nothing_else(sandbox_bin, outside, attacker):
    """Some container runtimes listen to system calls themselves; the kernel allows one listener per process."""
    code = "import ctypes; libc = ctypes.CDLL(None, use_errno=True); print(libc.chroot(b'/'), ctypes.get_errno())"
    run = [sandbox_bin, "run", "--json", "--", "/usr/bin/python3", "-c", code]
    control = json.loads(outside(run).stdout)
    assert control["stdout"] == f"-1 {EPERM}\n" and control["receipt"]["denials_recorded"], control
    assert [denial["syscall"] for denial in control["receipt"]["denials"]] == ["chroot"], control

    listened = attacker("listened")
    # Here a second listener is refused: the payload cannot be put below itself.
    assert outside([listened, listened, "/bin/true"]).stderr == "seccomp: Device or resource busy\n"
    done = outside([listened, *run])
    assert done.returncode == 0, done
    report = json.loads(done.stdout)
    assert report["stdout"] == f"-1 {EPERM}\n", report
    receipt = report["receipt"]
    assert not receipt["denials_recorded"] and receipt["denials"] == [], receipt
    assert receipt["layers"]["seccomp"]["on"], receipt
    assert "refusals not recorded" in receipt["layers"]["seccomp"]["detail"], receipt


TTY = (
    "import fcntl, os, pty, struct, termios\n"
    "master, slave = pty.openpty()\n"
    "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
    "byte = ctypes.c_char(b'x')\n"
    "for request in (0x5412, 0x5412 | 1 << 40, 0x541c, 0x541c | 1 << 33, 0x5423, 0x541d):\n"
    "    print(libc.syscall({ioctl}, slave, ctypes.c_ulong(request), ctypes.byref(byte)), ctypes.get_errno())\n"
    "print(fcntl.ioctl(slave, termios.TIOCGWINSZ, b'12345678') and 'ok')\n"
)


def test_guest_cannot_type_into_a_terminal(inside):
    code = TTY.format(ioctl=16 if platform.machine() == "x86_64" else 29)
    ended = inside(code)
    assert ended.stdout.splitlines() == ["-1 1"] * 6 + ["ok"]
    assert {denial["detail"] for denial in ended.denied("ioctl")} == {
        "request 0x5412", "request 0x541c", "request 0x5423", "request 0x541d",
    }  # fmt: skip


FAMILIES = {
    "AF_NETLINK": (16, 3, 0), "AF_PACKET": (17, 3, 0), "AF_ALG": (38, 5, 0), "AF_VSOCK": (40, 1, 0),
    "AF_BLUETOOTH": (31, 3, 0), "AF_KEY": (15, 3, 2), "AF_TIPC": (30, 1, 0), "AF_XDP": (44, 3, 0),
    "AF_RDS": (21, 5, 0), "AF_CAN": (29, 3, 1), "AF_QIPCRTR": (42, 2, 0), "AF_SMC": (43, 1, 0),
    "raw": (2, 3, 1), "raw6": (10, 3, 58), "ping": (2, 2, 1), "sctp": (2, 1, 132), "mptcp": (2, 1, 262),
    "high bits": (16 | 1 << 40, 3, 0),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_guest_cannot_open_a_socket_of(inside, family):
    number = 41 if platform.machine() == "x86_64" else 198
    arguments = ", ".join(f"ctypes.c_ulong({value})" for value in FAMILIES[family])
    code = (
        "import ctypes, socket; libc = ctypes.CDLL(None, use_errno=True)\n"
        f"print(libc.syscall({number}, {arguments}), ctypes.get_errno())\n"
        "for kind in ((socket.AF_INET, 1), (socket.AF_INET6, 2), (socket.AF_UNIX, 5)):\n"
        "    socket.socket(*kind).close()\n"
        "print('ok')\n"
    )
    ended = inside(code)
    refused, control = ended.stdout.splitlines()
    assert refused in ("-1 97", "-1 93", "-1 1") and control == "ok"
    assert ended.denied("socket")


def test_personality_cannot_be_changed(inside):
    code = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.personality(ctypes.c_ulong(0x0400000)), ctypes.get_errno())\n"
        "print(libc.personality(ctypes.c_ulong(0xffffffff)))\n"
    )
    assert inside(code).stdout == "-1 1\n0\n"


DISK = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
usr = os.open("/usr/bin", os.O_RDONLY)
def told(request):
    said = ctypes.create_string_buffer(256)
    ctypes.set_errno(0)
    return (libc.ioctl(usr, ctypes.c_ulong(request), said), ctypes.get_errno())
print(*told(0x80811501), *told(0x80111500))  # FS_IOC_GETFSSYSFSPATH, FS_IOC_GETFSUUID
"""


def test_guest_is_not_told_on_which_disk_of_the_host_a_file_lies(inside, outside):
    """The first answers "ext4/vda"."""
    if "25" in outside(DISK).stdout.split():
        pytest.skip("needs Linux 6.9, and a file system that tells which disk it is on")
    assert inside(DISK).stdout == "-1 25 -1 25\n"


# Calls that are refused for one of their arguments: what each would do, and the same call with a harmless one.
ARGUMENTS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
IN_OPEN, IN_MODIFY, IN_ALL, MAP_HUGETLB, MEMORY_MERGE, F_NOTIFY, F_GETFL = 0x20, 2, 0xfff, 0x40000, 67, 1026, 3
F_SETLEASE, F_WRLCK, ADD_KEY = 1024, 1, 0xc0506617
own = os.open("/tmp/own", os.O_CREAT | os.O_RDONLY)
usr = os.open("/usr", os.O_RDONLY)
watches = libc.inotify_init()
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.mmap.restype = ctypes.c_ssize_t
for name, call in {
    "watch who opens programs": lambda: libc.inotify_add_watch(watches, b"/usr/bin", IN_OPEN),
    "watch all": lambda: libc.inotify_add_watch(watches, b"/usr/bin", IN_ALL),
    "watch changes": lambda: libc.inotify_add_watch(watches, b"/usr/bin", IN_MODIFY),
    "signals when others read": lambda: libc.fcntl(usr, F_NOTIFY, 1),
    "make others wait": lambda: libc.fcntl(own, F_SETLEASE, F_WRLCK),
    "leave keys": lambda: libc.ioctl(usr, ctypes.c_ulong(ADD_KEY), bytes(80)),
    "flags": lambda: libc.fcntl(usr, F_GETFL),
    "huge pages": lambda: libc.mmap(None, 2 << 20, 3, 0x22 | MAP_HUGETLB, -1, 0),
    "pages": lambda: libc.mmap(None, 2 << 20, 3, 0x22, -1, 0),
    "merge with other boxes": lambda: libc.prctl(MEMORY_MERGE, 1, 0, 0, 0),
    "flush the disk of the host": lambda: libc.syncfs(usr),
    "flush a file": lambda: libc.fsync(os.open("/tmp/x", os.O_CREAT | os.O_RDWR)),
}.items():
    ctypes.set_errno(0)
    print(name + "=" + str(ctypes.get_errno() if call() == -1 else 0))
"""
HARMLESS = {"watch changes", "flags", "pages", "flush a file"}


def test_single_arguments_are_refused_and_their_neighbours_work(inside, allow_all):
    def told(*options):
        lines = inside(ARGUMENTS, *options).stdout.splitlines()
        return {name: int(code) for name, code in (line.split("=") for line in lines)}

    shown = told()
    assert {name for name, code in shown.items() if code == EPERM} == shown.keys() - HARMLESS
    assert {name for name, code in shown.items() if code == 0} == HARMLESS
    # Without the filter the kernel does all of it, or has other reasons: no huge pages set aside, an old kernel.
    assert EPERM not in told("--seccomp", allow_all, "--allow-degraded", "cgroups").values()


WATCH = """
import ctypes, os, subprocess
libc = ctypes.CDLL(None)
watches = libc.inotify_init()
libc.inotify_add_watch(watches, b"/usr/bin", 0x20)
subprocess.run(["/usr/bin/factor", "7"], capture_output=True)
print(b"factor" in os.read(watches, 65536))
"""


def test_a_watch_shows_what_others_run(outside):
    assert outside(WATCH).stdout == "True\n"


# Whether the first page of a file is in memory: "cached", or EAGAIN if it is not, or why that cannot be told.
CACHED = """
import errno, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
for word in sys.argv[2:]:
    if word == "read": os.pread(file, 1, 0)
    if word == "drop": os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
try: print("cached" if os.preadv(file, [bytearray(1)], 0, os.RWF_NOWAIT) else "empty")
except OSError as error: print(errno.errorcode[error.errno])
"""


@pytest.fixture
def lent(tmp_path):
    """One page of a file, on the disk and in memory."""
    tmp_path.chmod(0o755)
    lent = tmp_path / "lent"
    with lent.open("wb") as file:
        file.write(bytes(4096))
        os.fsync(file.fileno())
    return lent


def test_a_guest_cannot_tell_who_else_has_read_a_lent_file(inside, outside, allow_all, lent):
    """By dropping it from memory and asking later whether it is back."""

    def look(*words):
        return outside([PYTHON, "-c", CACHED, lent, *words]).stdout.strip()

    def look_inside(*words, options=()):
        command = ["python3", "-c", CACHED, "/lent", *words]
        return inside(command, "--ro", f"{lent}:/lent", *options).stdout.strip()

    look("read", "drop")  # what was just written, the kernel drops sooner or later
    if (seen := (look("read"), look("drop"))) != ("cached", "EAGAIN"):
        pytest.skip(f"needs a file system that tells what is cached of a file, and drops it: here it says {seen}")
    assert look("read") == "cached"
    assert look_inside("read", options=("--seccomp", allow_all)) == "cached"
    assert look_inside("drop", options=("--seccomp", allow_all)) == "EAGAIN"
    assert look("read") == "cached"
    assert look_inside("drop") == look_inside("read") == "ENOTSUP"
    assert look() == "cached", "the guest has dropped it"


SENT_AWAY = """
import ctypes, errno, mmap, sys
libc = ctypes.CDLL(None, use_errno=True)
file = open(sys.argv[1], "rb")
pages = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
at, size, seen = ctypes.addressof(ctypes.c_char.from_buffer(pages)), ctypes.c_size_t(len(pages)), (ctypes.c_ubyte * 1)()
def told(call):
    return errno.errorcode[ctypes.get_errno()] if call() else "done"
def look():
    return told(lambda: libc.mincore(ctypes.c_void_p(at), size, seen)) + str(seen[0] & 1)
pages[0]
print(look(), told(lambda: libc.madvise(ctypes.c_void_p(at), size, 21)), look())  # MADV_PAGEOUT
"""


def test_a_guest_cannot_send_pages_of_a_lent_file_away(inside, outside, allow_all, lent):
    """Nor ask whether they are back: the same by its mappings."""
    assert outside([PYTHON, "-c", SENT_AWAY, lent]).stdout in ("done1 done done0\n", "done1 done done1\n")
    ended = inside(["python3", "-c", SENT_AWAY, "/lent"], "--ro", f"{lent}:/lent")
    assert ended.stdout == "ENOSYS0 EINVAL ENOSYS0\n" and ended.denied("madvise")
    control = inside(["python3", "-c", SENT_AWAY, "/lent"], "--ro", f"{lent}:/lent", "--seccomp", allow_all)
    assert control.stdout.startswith("done1 done ")
