"""A guest sees no file of the host but the system's programs and libraries and what is lent by name. It writes none."""

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

READ = (
    "import errno, sys\n"
    "for path in sys.argv[1:]:\n"
    "    try: print(open(path, 'rb').read(40))\n"
    "    except OSError as error: print(errno.errorcode[error.errno])\n"
)


def test_guest_cannot_read_a_planted_secret(inside, outside, secret):
    code = READ.replace("sys.argv[1:]", repr([str(secret)]))
    assert inside(code).stdout == "ENOENT\n"
    assert secret.read_text().strip() in outside(code).stdout
    assert secret.read_text().strip() in inside(code, "--ro", secret).stdout


def test_guest_cannot_see_host_home(inside, outside):
    home = str(Path.home())
    code = f"import os\nprint(sorted(os.listdir('/home')), os.path.exists('/root'), os.path.exists({home!r} + '/.'))"
    listed = inside(code).stdout
    assert listed == "['sandbox'] False False\n"
    assert "True" in outside(code.replace("os.listdir('/home')", "[]")).stdout


def test_etc_is_synthetic(inside):
    code = (
        "import os\n"
        "print(open('/etc/passwd').read().count('\\n'), open('/etc/group').read().count('\\n'))\n"
        "print([name for name in ('shadow', 'gshadow', 'sudoers', 'ssh', 'machine-id', 'fstab', 'subuid', 'crontab')"
        " if os.path.lexists('/etc/' + name)])\n"
        "print(open('/etc/hostname').read().strip(), open('/etc/resolv.conf').read())\n"
    )
    assert inside(code).stdout == "2 2\n[]\nsandbox \n"


def test_root_holds_only_what_is_listed(inside):
    # run and var are empty shells; whatever else the host has at the top must not be there.
    listed = set(inside("import os; print(*os.listdir('/'))").stdout.split())
    known = {"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "nix", "etc", "proc", "dev", "tmp", "home"}
    assert listed <= known | {"mnt", "run", "var", "attack", "opt"}
    empty = "import os; print(os.listdir('/run'), sorted(os.listdir('/var')), os.path.exists('/sys'))"
    assert inside(empty).stdout == "[] ['empty', 'run', 'tmp'] False\n"


@pytest.mark.parametrize(
    "place", ["/", "/usr", "/usr/bin", "/etc", "/lib", "/proc", "/proc/sys", "/dev", "/run", "/var"]
)
def test_guest_cannot_write_to(inside, place):
    code = (
        "import errno\n"
        f"try: open({place!r} + '/planted', 'w'); print('written')\n"
        "except OSError as error: print(errno.errorcode[error.errno])\n"
        "open('/tmp/own', 'w'); open('/home/sandbox/own', 'w'); open('/dev/shm/own', 'w'); print('ok')\n"
    )
    refused, control = inside(code).stdout.split()
    assert refused in ("EROFS", "EACCES", "ENOENT") and control == "ok"


@pytest.mark.parametrize("uid", ["1000", "0"])
def test_guest_cannot_change_programs_it_runs(inside, uid):
    code = (
        "import errno, os, sys\n"
        "for path in ('/proc/self/exe', sys.executable, '/proc/1/exe', '/bin/sh', '/lib64/ld-linux-x86-64.so.2'):\n"
        "    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC):\n"
        "        try: os.open(path, flags); print('OPEN', path)\n"
        "        except OSError as error: print(errno.errorcode[error.errno])\n"
    )
    answers = set(inside(code, "--uid", uid).stdout.split())
    assert answers <= {"EROFS", "EACCES", "ETXTBSY", "ENOENT", "EPERM"}


def test_guest_cannot_look_into_init(inside, outside):
    code = (
        "import errno, os\n"
        "for name in ('environ', 'mem', 'maps', 'auxv', 'stack', 'syscall', 'io', 'personality'):\n"
        "    try: print('READ', name, open(f'/proc/1/{name}', 'rb').read(16))\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
        "for name in ('root', 'cwd', 'exe', 'fd', 'map_files', 'ns/mnt', 'ns/user', 'task/1/fd'):\n"
        "    try: print('LIST', name, os.listdir(f'/proc/1/{name}') if name != 'exe' else os.readlink('/proc/1/exe'))\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
    )
    answers = inside(code).stdout
    assert set(answers.split()) <= {"EACCES", "EPERM", "ENOTDIR", "ENOENT"}, answers
    assert "READ environ" in outside(code.replace("/proc/1/", "/proc/self/")).stdout


def test_init_shows_nothing_of_the_caller(inside):
    settings = {"env": {**os.environ, "CALLERS_TOKEN": "tok-123456"}}
    code = (
        "print(open('/proc/1/cmdline').read(), open('/proc/1/comm').read())\n"
        "for name in ('environ', 'cmdline'):\n"
        "    try: print('tok-123456' in open(f'/proc/1/{name}').read())\n"
        "    except OSError as error: print(error.errno)\n"
    )
    shown = inside(code, **settings).stdout
    assert "tok-123456" not in shown and "True" not in shown and "pctx" not in shown.split("\n")[0]


def test_guest_inherits_no_variable(inside, outside):
    settings = {"env": {**os.environ, "CALLERS_TOKEN": "tok-123456", "LD_PRELOAD": "", "PYTHONPATH": "/planted"}}
    code = "import os; print(sorted(os.environ))"
    names = eval(inside(code, **settings).stdout)
    assert set(names) <= {
        "PATH", "HOME", "USER", "LANG", "LC_CTYPE", "TMPDIR", "XDG_CACHE_HOME", "SHELL", "LOGNAME", "TZ", "PWD", "TERM",
    }  # fmt: skip
    assert "CALLERS_TOKEN" in outside(code, **settings).stdout


FDS = "import os\nfor fd in range(3, 2000):\n    try: os.fstat(fd); print(fd)\n    except OSError: pass\n"


def test_descriptors_of_the_caller_do_not_leak(inside, outside, secret):
    root = os.open("/", os.O_PATH)
    with open(secret) as handle:
        numbers = [fcntl.fcntl(handle, fcntl.F_DUPFD, 40), fcntl.fcntl(root, fcntl.F_DUPFD, 200)]
        try:
            settings = {"pass_fds": numbers}
            assert inside(FDS, **settings).stdout == ""
            assert set(map(str, numbers)) <= set(outside(FDS, **settings).stdout.split())
            code = "import os; print(sorted(os.listdir('/proc/self/fd')))"  # 3 is the listing itself
            assert inside(code, **settings).stdout == "['0', '1', '2', '3']\n"
        finally:
            for number in [*numbers, root]:
                os.close(number)


def test_guest_cannot_leave_by_its_working_directory(inside, tmp_path):
    code = (
        "import os\n"
        "print(os.getcwd())\n"
        "for start in ('/proc/self/cwd', '/proc/self/root', '/proc/thread-self/cwd', '.'):\n"
        "    os.chdir(start)\n"
        "    for _ in range(50): os.chdir('..')\n"
        "    print(sorted(os.listdir('.')) == sorted(os.listdir('/')), os.path.exists('sys'))\n"
        "fd = os.open('/', os.O_PATH); os.fchdir(fd); os.chdir('..')\n"
        "print(os.path.exists('sys'), os.readlink('/proc/self/root'))\n"
    )
    lines = inside(code, cwd=tmp_path).stdout.splitlines()
    assert lines == ["/home/sandbox", *["True False"] * 4, "False /"]
    # A working directory whose file system has no place in the box, and one that is gone.
    gone = tmp_path / "gone"
    gone.mkdir()
    done = inside(["sh", "-c", f"cd {gone} 2>/dev/null; pwd"], cwd=gone)
    assert done.stdout == "/home/sandbox\n"


@pytest.mark.parametrize(
    "place", ["/proc/self/fd/3", "/proc/self/fd/8", "/proc/1/root", "/proc/1/cwd", "/proc/self/cwd"]
)
def test_workdir_cannot_name_the_old_root(pctx, place):
    # Refused, or a place in the box: what the host has at its top is not to be seen from there.
    done = pctx(
        "run",
        "-q",
        "--workdir",
        place,
        "--",
        "python3",
        "-c",
        "import os; print(os.path.exists('/sys'), os.listdir('.'))",
    )
    assert done.returncode == 125 or (done.stdout.startswith("False") and "sys" not in done.stdout)


@pytest.mark.parametrize(
    "path",
    ["/proc/kcore", "/proc/kmsg", "/proc/keys", "/proc/key-users", "/proc/kallsyms", "/proc/timer_list",
     "/proc/interrupts", "/proc/irq/default_smp_affinity", "/proc/softirqs", "/proc/cmdline", "/proc/sysrq-trigger"],
)  # fmt: skip
def test_dangerous_part_of_proc_is_masked(inside, path):
    code = READ.replace("sys.argv[1:]", repr([path])) + "print(open('/proc/self/comm').read())"
    answer = inside(code).stdout.splitlines()[0]
    assert answer in ("b''", "ENOENT", "EACCES", "EPERM")


@pytest.mark.parametrize("left", ["a file", "a link", "nothing"])
def test_what_is_lent_at_var_covers_nothing_of_proc(inside, open_place, skip_unless, left):
    """A guest that had /var could make what covered folders of /proc a link to the whole of it."""
    skip_unless(os.path.isdir("/proc/acpi"), "a kernel with /proc/acpi")
    if left == "a file":
        (open_place / "empty").mkdir()
        (open_place / "empty/file").touch()
    elif left == "a link":
        (open_place / "empty").symlink_to("/proc")
    code = "import os; print(os.listdir('/proc/acpi'), os.listdir('/var'))"
    there = "[]" if left == "nothing" else "['empty']"
    for option in ("--ro", "--rw"):
        assert inside(code, option, f"{open_place}:/var").stdout == f"[] {there}\n"
    assert inside(code, "--tmpfs", "/var").stdout == "[] []\n"


def test_sys_settings_cannot_be_written(inside, layers):
    code = (
        "import errno\n"
        "for name in ('kernel/core_pattern', 'kernel/hostname', 'user/max_user_namespaces', 'net/ipv4/ip_forward',\n"
        "             'kernel/modprobe', 'vm/drop_caches', 'fs/inotify/max_user_instances', 'kernel/shmmax'):\n"
        "    try: open('/proc/sys/' + name, 'w'); print('OPEN', name)\n"
        "    except OSError as error: print(errno.errorcode[error.errno])\n"
    )
    for uid in ("0", "1000"):
        assert set(inside(code, "--uid", uid).stdout.split()) <= {"EROFS", "EACCES", "ENOENT"}


def test_no_file_of_an_earlier_run_is_there(inside):
    inside("open('/tmp/x', 'w'); open('/dev/shm/x', 'w'); open('/home/sandbox/x', 'w')")
    code = "import os; print([p for d in ('/tmp', '/dev/shm', '/home/sandbox') for p in os.listdir(d) if p == 'x'])"
    assert inside(code).stdout == "[]\n"


def test_guest_cannot_dump_core(inside, tmp_path):
    code = (
        "import os, resource, signal\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE)[1] <= 1, flush=True)\n"
        "try: resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))\n"
        "except ValueError: pass\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGSEGV)\n"
    )
    ended = inside(code, "--mnt", tmp_path)
    assert (ended.kind, ended.outcome["signal"], ended.stdout) == ("signaled", 11, "True\n(1, 1)\n")
    assert not any(tmp_path.iterdir())


def test_crash_of_a_guest_does_not_start_the_hosts_crash_handler(inside):
    code = (
        "import resource\n"
        "for limits in ((0, 0), (0, 1)):\n"
        "    try: resource.setrlimit(resource.RLIMIT_CORE, limits)\n"
        "    except (ValueError, OSError): pass\n"
        "print(resource.getrlimit(resource.RLIMIT_CORE))\n"
    )
    assert inside(code).stdout == "(1, 1)\n"


def test_lent_folder_below_a_closed_one_opens_nothing_else(inside, tmp_path):
    closed = tmp_path / "closed"
    (closed / "lent").mkdir(parents=True)
    (closed / "private").write_text("private")
    (closed / "lent" / "file").write_text("lent")
    closed.chmod(0o700)
    code = "import os; print(os.listdir('/data'), open('/data/file').read(), os.path.exists('/data/../private'))"
    assert inside(code, "--ro", f"{closed}/lent:/data").stdout == "['file'] lent False\n"


def test_links_in_a_lent_folder_lead_nowhere_outside(inside, tmp_path, secret):
    lent = tmp_path / "lent"
    lent.mkdir()
    (lent / "link").symlink_to(secret)
    (lent / "up").symlink_to("../../../../../../../../")
    code = READ.replace("sys.argv[1:]", repr(["/lent/link", f"/lent/up/{secret}"]))
    assert inside(code, "--ro", f"{lent}:/lent").stdout == "ENOENT\nENOENT\n"
    assert subprocess.run(["cat", lent / "link"], capture_output=True, text=True).stdout == secret.read_text()
