"""The memory limit binds however memory is taken: by the group in a cgroup, or by the watchdog where there is none."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from waiting import wait_until

from broker import children_of

LIMIT = ("--memory", "64M", "--disk", "256M")
EVERYWHERE = ["private", "thread", "tmp", "shm", "home", "children"]
# Nothing but a cgroup sees these: where there is none, the call is refused; for shared memory, beyond a small part.
ACCOUNTED = {"memfd": "memfd_create", "sysv": "shmget", "shared": "mmap"}
PARKED = {
    "parked": "pages of a shared mapping that nobody maps any more",
    "parked-zero": "the same through /dev/zero",
    "sockets": "data that waits in unix sockets",
    "tables": "page tables of a sparse mapping",
    "relay": "a process whose threads are gone before they can be looked at",
}
# No cgroup of version 1 counts what is in sockets, and version 2 not what nobody has accepted.
IN_KERNEL = {
    "mappings": "one for every page",
    "named-mappings": "the same of a file with a long name",
    "ancestry": "mappings that came through a row of forks",
    "proc-files": "what each open file of /proc was read through",
    "tcp": "data that nobody reads",
    "udp": "the same in datagrams",
    "unaccepted": "connections that wait to be accepted, whose clients are gone",
    "orphans": "data of closed sockets that cannot be delivered",
}
OF_PROCESSES = ("mappings", "named-mappings", "ancestry", "proc-files")
MANY_LOCKS = ("100", "300")


@pytest.fixture
def stays(layers):
    """Seconds for which a control holds its memory: the watchdog must have seen it, a cgroup has at once."""
    return "0" if layers["cgroups"]["on"] else "1"


@pytest.mark.parametrize("kind", EVERYWHERE)
def test_guest_cannot_take_more_memory_by(attack, stays, kind):
    ended = attack("hog", kind, "160", options=LIMIT)
    assert (ended.kind, ended.limit, ended.status) == ("out_of_memory", "memory", 137)
    assert ended.outcome["message"] == "out of memory: limit 64 MiB (--memory)"
    assert "held" not in ended.stdout
    control = attack("hog", kind, "160", stays, options=("--memory", "600M", "--disk", "256M"))
    assert (control.kind, control.stdout) == ("exited", "held 160\n")


@pytest.mark.parametrize("kind", ACCOUNTED)
def test_guest_cannot_hide_memory_in(attack, layers, stays, kind):
    ended = attack("hog", kind, "160", options=LIMIT)
    if layers["cgroups"]["on"]:
        assert (ended.kind, ended.limit) == ("out_of_memory", "memory")
        assert attack("hog", kind, "160", stays, options=("--memory", "600M")).stdout == "held 160\n"
    else:
        assert ended.stdout == f"refused {ACCOUNTED[kind]} 1\n" and ended.denied(ACCOUNTED[kind])


@pytest.mark.parametrize("kind", PARKED)
def test_guest_cannot_park_memory_in(attack, kind):
    ended = attack("hog", kind, "200", options=("--memory", "64M", "--pids", "64"))
    # A refusal of the call is as good as an end.
    assert (ended.kind, ended.limit) == ("out_of_memory", "memory") or "refused" in ended.stdout
    assert "held" not in ended.stdout


def test_guest_cannot_pass_memory_on_between_processes(attack, attacker, outside):
    """Each is gone before it can be read, and its successor is not on the list that was made before."""
    ended = attack("hog", "hops", "300", options=("--memory", "64M", "--pids", "64"))
    assert (ended.kind, ended.limit) == ("out_of_memory", "memory") and "held" not in ended.stdout
    assert outside([attacker("hog"), "hops", "300", "1"]).stdout == "held 300\n"


COMES_AND_GOES = """
for row in 1 2 3 4; do (n=0; while [ $n -lt 150 ]; do /bin/true; (:); n=$((n+1)); done) & done
wait; echo done
"""


def test_processes_that_come_and_go_fast_hide_nothing(inside):
    assert inside(["sh", "-c", COMES_AND_GOES], "--memory", "64M", "--timeout", "50s").stdout == "done\n"


# A forked child has all pages of its parent, until one of them writes.
COPIES = """
import os, time
kept = bytearray(100 << 20)
def touch():
    for at in range(0, len(kept), 4096): kept[at] = 1
touch()
done, tell = os.pipe()
for n in range(12):
    if os.fork() == 0:
        if n < {writers}: touch()
        os.write(tell, b"x"); time.sleep(60); os._exit(0)
for n in range(12): os.read(done, 1)
time.sleep({stays}); print("held")
"""


def test_memory_that_forks_share_counts_once_until_it_is_written(inside):
    assert inside(COPIES.format(writers=0, stays=1), "--memory", "256M").stdout == "held\n"
    ended = inside(COPIES.format(writers=3, stays=20), "--memory", "256M")
    assert (ended.kind, ended.limit, ended.stdout) == ("out_of_memory", "memory", "")


NAMED = """
import mmap, os, time
os.chdir("/tmp")
for level in range({levels}):
    os.mkdir("\\n" * 250); os.chdir("\\n" * 250)
with open("file", "wb+") as file:
    file.truncate(4096); area = mmap.mmap(file.fileno(), 4096)
time.sleep(2); print(max(map(len, open("/proc/self/maps"))))
"""


def test_no_mapping_has_a_name_beyond_reason(inside, without_cgroups, layers):
    """An open list of mappings keeps a buffer as long as its longest line. AppArmor lets nobody make such a path."""
    ended = inside(NAMED.format(levels=80), "--memory", "256M")
    if layers["apparmor"]["on"]:
        assert "File name too long" in ended.stderr
        return
    assert (ended.kind, ended.limit, ended.stdout) == ("out_of_memory", "memory", ""), ended.stderr
    assert int(inside(NAMED.format(levels=40), "--memory", "256M").stdout) > 40000


SHARED = """
import mmap, time
for n in range({count}):
    try: area = mmap.mmap(-1, 4 << 20)
    except PermissionError: print("refused"); break
    area.write(bytes(4 << 20)); area.close(); print("mapped")
private = bytearray({private} << 20)
time.sleep({stays})
"""


def test_shared_memory_that_no_cgroup_counts_is_counted_as_if_it_stayed(inside, layers, stays):
    def run(count, private):
        ended = inside(SHARED.format(count=count, private=private, stays=stays), "--memory", "64M")
        return ended.kind, ended.stdout.split(), [denial["detail"] for denial in ended.denied("mmap")]

    if layers["cgroups"]["on"]:
        assert run(5, 44) == ("exited", ["mapped"] * 5, [])
        return
    assert run(4, 1) == ("exited", ["mapped"] * 4, [])
    assert run(5, 1) == ("exited", ["mapped"] * 4 + ["refused"], ["MAP_SHARED | MAP_ANONYMOUS"])
    assert run(0, 46) == ("exited", [], [])
    assert run(4, 46)[0] == "out_of_memory"


@pytest.mark.parametrize("kind", IN_KERNEL)
def test_guest_cannot_fill_the_kernel_with(attack, kind, lists_sockets):
    ended = attack("hog", kind, "160", options=(*LIMIT, "--files", "1024"))
    assert (ended.kind, ended.limit) == ("out_of_memory", "memory")
    assert "held" not in ended.stdout
    # Sockets that the kernel does not list count with what they could hold, which only a few of them may.
    other, size = (kind, "160") if lists_sockets or kind in OF_PROCESSES else ("tcp", "4")
    room = ("--memory", "2G", "--files", "1024", "--timeout", "400s")  # an emulated machine takes minutes
    control = attack("hog", other, size, "1", options=room, timeout=420)
    assert (control.kind, control.stdout) == ("exited", f"held {size}\n")


def test_guest_cannot_fill_the_kernel_with_file_locks(attack, attacker, outside):
    ended = attack("locks", "posix", *MANY_LOCKS)
    assert (ended.kind, ended.limit, ended.status) == ("out_of_memory", None, 137)
    assert ended.outcome["message"].startswith("out of memory: more than 10000 file locks, which --memory cannot count")
    assert ended.stdout == ""
    assert attack("locks", "posix", "10", "300", "1").stdout == "held 3000\n"
    assert outside([attacker("locks"), "posix", *MANY_LOCKS, "0"]).stdout == "held 30000\n"


def test_a_box_that_takes_long_to_start_is_looked_at_all_the_same(sandbox_bin, attacker):
    """Its first process is stopped at once, for longer than it takes to the first look."""
    locks = attacker("locks")
    command = [sandbox_bin, "run", "--json", "--ro", f"{locks}:/locks", "--", "/locks", "posix", *MANY_LOCKS]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as run:
            first, *_ = wait_until(lambda: children_of(run.pid), pause=0)
            os.kill(first, signal.SIGSTOP)
            time.sleep(0.2)
            os.kill(first, signal.SIGCONT)
            assert json.loads(run.stdout.read())["outcome"]["kind"] == "out_of_memory"


@pytest.mark.parametrize(("kind", "refused"), [("open", "fcntl 22"), ("orphaned", "clone 1")])
def test_guest_cannot_hold_file_locks_that_nobody_can_count(attack, attacker, outside, kind, refused):
    assert attack("locks", kind, *MANY_LOCKS).stdout == f"refused {refused}\n"
    assert outside([attacker("locks"), kind, *MANY_LOCKS, "0"]).stdout == "held 30000\n"


def test_locks_of_others_count_for_no_box(inside, attacker):
    """Locks of open files have no owner, so /proc/locks shows them in every pid namespace."""
    with subprocess.Popen([attacker("locks"), "open", *MANY_LOCKS, "60"]) as other:
        wait_until(lambda: len(Path("/proc/locks").read_bytes().splitlines()) >= 30000)
        ended = inside("import time; time.sleep(0.5); print(len(open('/proc/locks').read()))")
        other.kill()
    assert (ended.kind, ended.stdout) == ("exited", "0\n")


STORED = """
import time
for number in range(3):
    with open(f"/store/{number}", "wb") as file: file.write(bytes(100 << 20))
time.sleep(1); print("stored")
"""


def test_a_tmpfs_counts_as_memory(inside):
    ended = inside(STORED, "--memory", "128M", "--disk", "256M", "--tmpfs", "/store:900M")
    assert (ended.kind, ended.limit, ended.stdout) == ("out_of_memory", "memory", "")
    assert inside(STORED, "--memory", "900M", "--disk", "256M", "--tmpfs", "/store:900M").stdout == "stored\n"


RENAMED = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"{name}", 0, 0, 0)
kept = bytearray({size} << 20)
for at in range(0, len(kept), 4096): kept[at] = 1
time.sleep(1); print(open("/proc/self/comm").read().strip())
"""


@pytest.mark.parametrize("name", ["RssAnon:", "VmRSS: 1 kB", "Threads: 0"])
def test_a_process_cannot_be_called_small(inside, name):
    ended = inside(RENAMED.format(name=name, size=300), "--memory", "64M")
    assert (ended.kind, ended.limit, ended.stdout) == ("out_of_memory", "memory", "")
    assert inside(RENAMED.format(name=name, size=30), "--memory", "64M").stdout == f"{name}\n"


# A child that waits at a FIFO before its exec, for as long as another process lets it.
SPAWNS = """
import os, time
os.mkfifo("/tmp/gate")
heard, told = os.pipe()
if os.fork() == 0:
    os.read(heard, 1); time.sleep(1); open("/tmp/gate", "w").close(); os._exit(0)
kept = bytearray({size} << 20)
def touch():
    for at in range(0, len(kept), 4096): kept[at] = 1
touch()
copied, copy = os.pipe()
if {copies} and os.fork() == 0:
    touch(); os.write(copy, b"x"); time.sleep(20); os._exit(0)
if {copies}: os.read(copied, 1)
os.write(told, b"x")
actions = [(os.POSIX_SPAWN_OPEN, 5, "/tmp/gate", os.O_RDONLY, 0)]
print(os.waitpid(os.posix_spawn("/bin/true", ["true"], {{}}, file_actions=actions), 0)[1])
"""


def test_memory_that_a_child_has_until_it_becomes_a_program_counts_once(inside):
    """posix_spawn shares all memory with its child until the exec; /proc shows it twice."""
    assert inside(SPAWNS.format(size=160, copies=0), "--memory", "256M").stdout == "0\n"
    assert inside(SPAWNS.format(size=160, copies=0), "--memory", "128M").kind == "out_of_memory"


# The parent may not have come to wait when a look at it begins, and may be done when that ends.
SPAWNS_OFTEN = """
import os
kept = bytearray(160 << 20)
for at in range(0, len(kept), 4096): kept[at] = 1
for _ in range(1000): os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
print("ok")
"""


def test_who_starts_many_programs_has_its_memory_once(inside):
    assert inside(SPAWNS_OFTEN, "--memory", "256M", "--timeout", "60s").stdout == "ok\n"
    assert inside(SPAWNS_OFTEN, "--memory", "128M", "--timeout", "60s").kind == "out_of_memory"


def test_children_that_come_and_go_are_not_taken_for_such_children(attack):
    """420 MiB in all. A child is left out as one that shares its parent's memory for a few looks in a row only."""
    assert attack("relays", "20", "20", "1", options=("--memory", "1G", "--cpus", "2")).stdout == "held\n"
    assert attack("relays", "20", "20", "4", options=("--memory", "128M", "--cpus", "2")).kind == "out_of_memory"


@pytest.mark.parametrize("words", ["stream", "packet", "packet 0"])
def test_what_a_closed_socket_has_sent_is_counted(attack, attacker, outside, words):
    """The kernel counts it for the sender, which nobody sees any more. 250 MiB and more."""
    had = outside([attacker("orphans"), "2", *words.split()]).stdout
    assert int(had.removeprefix("had ")) > 200_000
    assert attack("orphans", "2", *words.split(), options=("--memory", "1G")).stdout == had
    ended = attack("orphans", "2", *words.split(), options=("--memory", "128M"))
    assert (ended.kind, ended.limit) == ("out_of_memory", "memory")


def test_a_wait_for_an_exec_hides_no_copy(inside):
    """A fork with memory of its own does not pass for the child that its parent waits for."""
    assert inside(SPAWNS.format(size=160, copies=1), "--memory", "256M").kind == "out_of_memory"
    assert inside(SPAWNS.format(size=80, copies=1), "--memory", "256M").stdout == "0\n"


COPIES_BESIDE = """
import os, subprocess, sys, time
if sys.argv[1:]: subprocess.Popen(sys.argv[1:])
time.sleep(1)
shared = bytearray(40 << 20)
for child in range(10):
    if os.fork() == 0:
        for at in range(0, len(shared), 4096): shared[at] = 1
        time.sleep(60)
time.sleep(15)
print("survived")
"""


def test_a_process_that_lets_nobody_look_hides_no_other(inside, mapping_holder):
    """What processes share is read from their mappings, and the kernel makes whoever reads wait while they change."""
    holder = ["--ro", f"{mapping_holder}:/holder"]
    code = ["python3", "-c", COPIES_BESIDE, "/holder", "60", "6"]
    assert inside(code, *holder, "--memory", "128M", "--timeout", "60s").kind == "out_of_memory"
    assert inside(code, *holder, "--memory", "2G", "--timeout", "60s").stdout.endswith("survived\n")


def test_one_process_out_of_memory_ends_the_whole_box(inside):
    code = "import os, time\nif os.fork() == 0: bytearray(500 << 20)\ntime.sleep(20); print('survived')\n"
    ended = inside(code, "--memory", "64M")
    assert ended.kind == "out_of_memory" and ended.stdout == ""
    assert inside(code.replace("sleep(20)", "sleep(0.5)"), "--memory", "900M").stdout == "survived\n"


def test_out_of_memory_is_told_however_soon_the_box_ends(inside):
    """The kernel kills one of its processes, and the others could be through before anybody looks."""
    code = ["sh", "-c", "head -c 20M /dev/zero > /tmp/filled; echo ended with $?"]
    assert [inside(code, "--memory", "8M").kind for _ in range(5)] == ["out_of_memory"] * 5
    assert inside(code, "--memory", "64M").stdout == "ended with 0\n"


def test_report_tells_out_of_memory_from_the_guests_own_sigkill(inside):
    own = inside(["sh", "-c", "kill -9 $$"], "--memory", "64M")
    over = inside("bytearray(10**9)", "--memory", "64M")
    assert (own.status, over.status) == (137, 137)
    assert (own.kind, own.outcome["signal"], own.limit) == ("signaled", 9, None)
    assert (over.kind, over.outcome["signal"], over.limit) == ("out_of_memory", 9, "memory")


def test_guest_cannot_make_itself_immune_to_the_oom_killer(inside, outside):
    code = (
        "import errno\n"
        "for value in ('-1000', '-1', '0', '1000'):\n"
        "    try: open('/proc/self/oom_score_adj', 'w').write(value); print('written')\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
    )
    assert set(inside(code).stdout.split()) <= {"EROFS", "EACCES"}
    assert outside(code).stdout.split()[-1] == "written"


def test_guest_cannot_lock_memory(inside):
    code = (
        "import ctypes, mmap\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "area = mmap.mmap(-1, 1 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n"
        "at = ctypes.addressof(ctypes.c_char.from_buffer(area))\n"
        "print(libc.mlock(ctypes.c_void_p(at), 1 << 20), ctypes.get_errno(), libc.mlock(ctypes.c_void_p(at), 4096))\n"
    )
    assert inside(code).stdout == "-1 12 0\n"
