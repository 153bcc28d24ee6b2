"""Everyday code runs unhindered in a plain box, and nothing that it does counts as a denial."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

STDLIB = {
    "subprocess": "import subprocess; print(subprocess.run(['echo', 'hi'], capture_output=True, text=True).stdout)",
    "shell pipeline": "import subprocess; print(subprocess.getoutput('ls / | sort | wc -l'))",
    "threads": "import concurrent.futures as f; print(sum(f.ThreadPoolExecutor(8).map(abs, range(-50, 0))))",
    "multiprocessing pool": "import multiprocessing as m\nwith m.Pool(3) as p: print(sum(p.map(abs, range(-50, 0))))",
    "spawned processes": "import multiprocessing as m\nif __name__ == '__main__':\n"
    "    p = m.get_context('forkserver').Process(target=print, args=('x',)); p.start(); p.join(); assert p.exitcode == 0",
    "POSIX semaphores": "import multiprocessing as m; s = m.Semaphore(2); s.acquire(); l = m.Lock()\nwith l: print(s.get_value())",
    "queues": "import multiprocessing as m; q = m.Queue(); p = m.Process(target=q.put, args=(42,)); p.start(); assert q.get() == 42; p.join()",
    "shared memory": "from multiprocessing import shared_memory as s; b = s.SharedMemory(create=True, size=1 << 20)\n"
    "b.buf[0] = 7; c = s.SharedMemory(b.name); assert c.buf[0] == 7; c.close(); b.close(); b.unlink()",
    "asyncio": "import asyncio\nasync def main():\n"
    "    p = await asyncio.create_subprocess_exec('echo', 'x', stdout=-1); assert (await p.communicate())[0] == b'x\\n'\n"
    "    await asyncio.gather(*(asyncio.sleep(0.01) for _ in range(20)))\nasyncio.run(main())",
    "asyncio server": "import asyncio\nasync def main():\n"
    "    s = await asyncio.start_server(lambda r, w: (w.write(b'hi'), w.close()), '127.0.0.1', 0)\n"
    "    r, w = await asyncio.open_connection(*s.sockets[0].getsockname()); assert await r.read() == b'hi'\nasyncio.run(main())",
    "sqlite3": "import sqlite3; d = sqlite3.connect('/tmp/x.db'); d.execute('create table t (a)'); d.executemany('insert into t values (?)', [(n,) for n in range(100)])\n"
    "d.commit(); d.execute('pragma journal_mode=wal'); assert d.execute('select sum(a) from t').fetchone() == (4950,)",
    # The OpenSSL of Ubuntu 22.04 names no file of certificates: it searches the folder, and lists none before it has to.
    "ssl": (
        "import ssl; c = ssl.create_default_context()\n"
        "c.get_ca_certs() or c.load_verify_locations('/etc/ssl/certs/ca-certificates.crt')\n"
        "assert c.get_ca_certs(); assert len(ssl.RAND_bytes(16)) == 16"
    ),
    "tempfile": "import tempfile, os\nwith tempfile.TemporaryDirectory() as d: open(os.path.join(d, 'x'), 'w').close()",
    "signals": "import signal; signal.setitimer(signal.ITIMER_REAL, 0.01); signal.signal(signal.SIGALRM, lambda *a: print('alarm')); signal.pause()",
    "mmap": "import mmap\nwith open('/tmp/m', 'w+b') as f:\n    f.truncate(1 << 20); m = mmap.mmap(f.fileno(), 0); m[0] = 1; m.flush()",
    "anonymous mmap": "import mmap, os; m = mmap.mmap(-1, 10); p = os.fork()\nif p == 0: m[0] = 7; os._exit(0)\n"
    "os.waitpid(p, 0); assert m[0] == 7",
    "shared arrays": "import multiprocessing as m; a = m.Array('i', 10); v = m.Value('d', 1.5); assert a[9] == 0 and v.value == 1.5",
    "locks": "import fcntl\nwith open('/tmp/l', 'w') as f: fcntl.flock(f, 2); fcntl.lockf(f, 2)",
    "pty": "import pty; assert pty.spawn(['true']) == 0",
    "select": "import select, os; r, w = os.pipe(); e = select.epoll(); e.register(r); os.write(w, b'x'); assert e.poll()",
    "sockets": "import socket; a, b = socket.socketpair(); a.send(b'x'); assert b.recv(1) == b'x'",
    "names of services": "import socket; assert (socket.getservbyname('http'), socket.getprotobyname('tcp'), socket.getservbyport(443)) == (80, 6, 'https')",
    "descriptor passing": "import socket, os; a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0]); assert socket.recv_fds(b, 1, 1)[1]",
    "resource": "import resource; resource.getrusage(resource.RUSAGE_SELF); resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))",
    "time zones": "import zoneinfo, datetime; print(datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Berlin')).utcoffset())",
    "locale": "import locale, sys; assert sys.getfilesystemencoding() == 'utf-8' and locale.getpreferredencoding() == 'UTF-8'; open('/tmp/é☃', 'w').close()",
    "user database": "import os, pwd, grp, getpass; assert getpass.getuser() == pwd.getpwuid(os.getuid()).pw_name; grp.getgrgid(os.getgid())",
    "compression": "import bz2, gzip, lzma, zlib; assert lzma.decompress(lzma.compress(b'x' * 9999)) == b'x' * 9999",
    "decimal and ctypes": "import ctypes, decimal; assert ctypes.CDLL(None).getpid() > 0; decimal.Decimal(2).sqrt()",
    "shutil": "import os, shutil; os.makedirs('/tmp/a/b'); open('/tmp/a/b/c', 'w').close(); shutil.copytree('/tmp/a', '/tmp/z'); shutil.make_archive('/tmp/t', 'gztar', '/tmp/a'); shutil.disk_usage('/tmp')",
    "http on loopback": "import http.server, threading, urllib.request as u; s = http.server.ThreadingHTTPServer(('127.0.0.1', 0), http.server.SimpleHTTPRequestHandler)\n"
    "threading.Thread(target=s.serve_forever, daemon=True).start(); assert u.urlopen(f'http://127.0.0.1:{s.server_port}/').status == 200",
}  # fmt: skip
# ruff: noqa: E501


@pytest.mark.parametrize("what", STDLIB)
def test_standard_library(report, what):
    ended = report("--", "python3", "-c", STDLIB[what])
    assert ended["status"] == 0, ended["stderr"]
    assert ended["receipt"]["denials"] == []


PACKAGES = {
    "numpy": "import numpy as n; a = n.random.default_rng(0).random((300, 300)); assert n.allclose(a @ n.linalg.inv(a), n.eye(300))",
    "pandas": "import pandas as p; f = p.DataFrame({'k': list('abab'), 'v': range(4)}); f.to_csv('/tmp/x.csv'); assert f.groupby('k').v.sum()['b'] == 4",
    "matplotlib": "import matplotlib.pyplot as p; p.plot([1, 2]); p.title('Grüße'); p.savefig('/tmp/x.png'); import os; assert os.path.getsize('/tmp/x.png') > 1000",
    "scikit-learn": "from sklearn.linear_model import LinearRegression as L; import numpy as n; x = n.arange(20).reshape(-1, 1); assert abs(L().fit(x, 3 * x.ravel()).coef_[0] - 3) < 1e-9",
    "scikit-learn in processes": "from sklearn.ensemble import RandomForestClassifier as R; import numpy as n; x = n.arange(200).reshape(-1, 1); R(20, n_jobs=2).fit(x, x.ravel() > 99)",
    "requests": "import requests\ntry: requests.get('http://192.0.2.1/', timeout=2)\nexcept requests.ConnectionError: print('no network')",
}


@pytest.mark.parametrize("name", PACKAGES)
def test_package(report, packages, name):
    ended = report(
        "--ro", f"{packages}:/packages", "--env", "PYTHONPATH=/packages", "--", "python3", "-c", PACKAGES[name]
    )
    assert ended["status"] == 0, ended["stderr"]
    assert ended["receipt"]["denials"] == []


def need(*programs):
    for name in programs:
        if not shutil.which(name, path="/usr/bin:/usr/local/bin:/bin"):
            pytest.skip(f"needs {name} below /usr")


def test_gcc_compiles_and_runs(report):
    need("gcc")
    line = "printf '#include <stdio.h>\\nint main(void) { puts(\"compiled\"); }' > a.c && gcc -O2 a.c -o a && ./a"
    ended = report("--", "sh", "-c", line)
    assert ended["stdout"] == "compiled\n", ended["stderr"]
    assert ended["receipt"]["denials"] == []


def test_threads_in_c_and_make(report):
    need("gcc", "make")
    line = (
        "printf 'all: a b\\na b:\\n\\techo $@ > $@\\n' > Makefile && make -s -j4 && cat a b && "
        "printf '#include <pthread.h>\\nvoid* f(void* x) { return x; }\\nint main(void) { pthread_t t; "
        "return pthread_create(&t, 0, f, 0) || pthread_join(t, 0); }' > t.c && gcc -pthread t.c -o t && ./t"
    )
    ended = report("--", "sh", "-c", line)
    assert (ended["status"], ended["stdout"]) == (0, "a\nb\n"), ended["stderr"]


def test_git_works(report):
    need("git")
    line = (
        "git init -q r && cd r && git config user.name n && git config user.email e@example.org && echo x > f && "
        "git add f && git commit -qm one && git clone -q . ../c && git -C ../c log --oneline | wc -l"
    )
    ended = report("--", "sh", "-c", line)
    assert ended["stdout"].strip() == "1", ended["stderr"]
    assert ended["receipt"]["denials"] == []


def test_node_runs(report):
    need("node")
    code = (
        "const {execSync} = require('child_process'); const fs = require('fs'); fs.writeFileSync('/tmp/x', 'y');"
        "const {Worker} = require('worker_threads'); new Worker('1', {eval: true}).on('exit', c => console.log(c, '' + execSync('echo z')))"
    )
    ended = report("--pids", "64", "--memory", "1G", "--", "node", "-e", code)
    assert ended["stdout"].startswith("0 z"), ended["stderr"]
    # libuv asks for io_uring and goes on without it.
    assert {denial["syscall"] for denial in ended["receipt"]["denials"]} <= {"io_uring_setup"}


def test_java_compiles_and_runs(report, tmp_path):
    """Debian's reads its settings through links into /etc/java-*-openjdk."""
    need("java")
    tmp_path.chmod(0o755)
    (tmp_path / "H.java").write_text(
        "import java.security.*; public class H { public static void main(String[] a) throws Exception {"
        ' new SecureRandom().nextInt(); MessageDigest.getInstance("SHA-256"); System.out.println("ran"); } }'
    )
    for java in {"java", *map(str, Path("/usr/lib/jvm").glob("java-*-openjdk-*/bin/java"))}:
        compiler = Path(os.path.realpath(shutil.which(java) or java)).with_name("javac")
        if not compiler.exists():
            pytest.skip(f"needs the compiler beside {java}")
        ended = report("--pids", "256", "--memory", "2G", "--ro", f"{tmp_path}:/h", "--", java, "/h/H.java")
        assert (ended["status"], ended["stdout"]) == (0, "ran\n"), ended["stderr"]


# Types of files, pages of the manual, macros of groff.
SETTINGS = {
    "/etc/mime.types": ["cat", "/etc/mime.types"],
    "/etc/manpath.config": ["man", "-w"],
    "/etc/groff": ["ls", "-R", "/etc/groff"],
}


def test_settings_that_programs_read(report):
    here = [command for file, command in SETTINGS.items() if os.path.exists(file) and shutil.which(command[0])]
    if not here:
        pytest.skip(f"needs one of {', '.join(SETTINGS)}")
    for command in here:
        path = {"PATH": "/usr/bin:/bin"}  # of which man makes its own
        outside = subprocess.run(command, capture_output=True, text=True, env=path)
        ended = report("--env", "PATH=/usr/bin:/bin", "--", *command)
        assert (ended["status"], ended["stdout"], ended["stderr"]) == (0, outside.stdout, outside.stderr)


def test_virtual_environment(report):
    code = "import venv; venv.create('/tmp/v', with_pip=False); import subprocess; print(subprocess.getoutput('/tmp/v/bin/python -c \"import sys; print(sys.prefix)\"'))"
    assert report("--", "python3", "-c", code)["stdout"] == "/tmp/v\n"


def test_shell_tools(report):
    line = (
        "seq 1000 | awk '{s += $1} END {print s}'; tar cf t.tar -C /usr/share/zoneinfo Europe && tar xf t.tar && ls Europe | wc -l;"
        "find /usr/bin -name 'ba*' | sort | head -n 1 > /dev/null; df /tmp > /dev/null; ps > /dev/null 2>&1 || true; date +%Z > /dev/null"
    )
    ended = report("--", "sh", "-c", line)
    assert ended["status"] == 0 and ended["stdout"].startswith("500500\n"), ended["stderr"]


def test_time_zone_is_the_callers(pctx):
    done = pctx("run", "-q", "--", "date", "-d", "@0", "+%H", env={**os.environ, "TZ": "Asia/Tokyo"})
    assert done.stdout == "09\n"
    assert pctx("run", "-q", "--env", "TZ=UTC", "--", "date", "-d", "@0", "+%H").stdout == "00\n"


def test_only_the_name_of_a_zone_gets_in(pctx):
    for value, shown in (("Asia/Tokyo", "Asia/Tokyo\n"), ("a-secret", "none\n"), ("../../../etc/passwd", "none\n")):
        done = pctx("run", "-q", "--", "sh", "-c", "echo ${TZ-none}", env={**os.environ, "TZ": value})
        assert done.stdout == shown


def test_the_cache_folder_is_there(pctx):
    assert pctx("run", "-q", "--", "sh", "-c", 'echo x > "$XDG_CACHE_HOME/y" && cat ~/.cache/y').stdout == "x\n"


@pytest.mark.parametrize("value", [":/etc/localtime", "/../../../etc/shadow", "A" * 500, "x\ny", ""])
def test_strange_time_zones_do_no_harm(pctx, value):
    assert pctx("run", "-q", "--", "date", env={**os.environ, "TZ": value}).returncode == 0


@pytest.mark.parametrize("value", ["tr_TR.UTF-8", "xx_YY.nonsense", "C", "ja_JP.eucJP", ""])
def test_locale_of_the_caller_does_not_decide(pctx, value):
    done = pctx("run", "-q", "--memory", "64M", "--", "python3", "-c", "import sys; print('é', sys.stdout.encoding)",
                env={**os.environ, "LC_ALL": value, "LANG": value})  # fmt: skip
    assert done.stdout == "é utf-8\n"
