"""What a guest leaves in a lent folder is data of an attacker's: it must not become a way out for it later, and must
give nobody on the host new rights."""

import json
import os
import re
import stat

import pytest


def test_guest_cannot_write_what_is_lent_read_only(inside, tmp_path):
    lent = tmp_path / "lent"
    lent.mkdir(mode=0o755)
    (lent / "file").write_text("as it was")
    code = (
        "import os\n"
        "for act in (lambda: open('/lent/file', 'w'), lambda: os.unlink('/lent/file'), lambda: os.mkdir('/lent/new'),\n"
        "            lambda: os.chmod('/lent/file', 0o777), lambda: os.rename('/lent/file', '/lent/other'),\n"
        "            lambda: os.utime('/lent/file'), lambda: os.truncate('/lent/file', 0)):\n"
        "    try: act(); print('done')\n"
        "    except OSError as error: print(error.errno)\n"
    )
    refused = inside(code, "--ro", f"{lent}:/lent").stdout.split()
    # EROFS by the mount, or EACCES where Landlock answers first; EXDEV is how it refuses to move.
    assert len(refused) == 7 and set(refused) <= {"30", "13", "18"}
    assert (lent / "file").read_text() == "as it was"
    assert inside(code, "--rw", f"{lent}:/lent").stdout.split()[0] == "done"


def set_id_bits(folder):
    return {entry.name: stat.S_IMODE(entry.stat().st_mode) & 0o6000 for entry in os.scandir(folder)}


def test_guest_cannot_leave_a_set_id_program_on_the_host(inside, outside, tmp_path):
    code = (
        "import os, shutil\n"
        "shutil.copy('/bin/sh', '/mnt/shell')\n"
        "for mode in (0o4755, 0o2755, 0o6755):\n"
        "    try: os.chmod('/mnt/shell', mode)\n"
        "    except OSError as error: print(error.errno)\n"
        "fd = os.open('/mnt/direct', os.O_CREAT | os.O_WRONLY, 0o4755)\n"
    )
    control, lent = tmp_path / "control", tmp_path / "lent"
    control.mkdir()
    lent.mkdir()
    assert outside(code.replace("/mnt/", f"{control}/")).stdout == ""
    assert set_id_bits(control) == {"shell": 0o6000, "direct": 0o4000}
    inside(code, "--mnt", lent)
    left = set_id_bits(lent)
    assert "shell" in left
    assert not any(left.values()), f"set-id bits on the host, owner {(lent / 'shell').stat().st_uid}: {left}"


def test_set_id_bits_mean_nothing_in_the_box(attack, attacker, outside, open_place):
    program = open_place / "whoami"
    program.write_bytes(attacker("identity").read_bytes())
    program.chmod(0o6755)
    inside_ids = attack("identity", options=["--ro", f"{open_place}:/lent"]).stdout.split()
    ended = attack("identity", "/lent/whoami", options=["--ro", f"{open_place}:/lent"])
    assert ended.stdout.split() == inside_ids
    if os.geteuid() == 0:  # an ordinary user has no second id to become; the other half of the suite has this control
        control = outside([program], user=65534, group=65534, extra_groups=[]).stdout.split()
        assert control == ["65534", "0", "0", "65534", "0", "0"], f"{open_place} is mounted nosuid?"
    else:
        assert outside([program]).returncode == 0


LINKS = {"absolute": str, "through the root": lambda place: "../" * 40 + str(place).lstrip("/")}
LENDING = {
    "a file": ["--ro", "{secret}:/mnt/{name}/planted"],
    "a folder": ["--ro", "{folder}:/mnt/{name}/planted"],
    "a folder in memory": ["--tmpfs", "/mnt/{name}/planted"],
}


@pytest.mark.parametrize("what", LENDING)
@pytest.mark.parametrize("link", LINKS)
def test_planted_link_does_not_lead_the_engine_out_of_the_box(inside, pctx, tmp_path, secret, open_place, link, what):
    """The old root lies over the box's own while that is built, and ".." of the root leads there."""
    folder, real = tmp_path / "work", tmp_path / "work" / "real"
    real.mkdir(parents=True)
    for place in (real, open_place):
        (place / "planted").touch() if what == "a file" else (place / "planted").mkdir()
    (open_place / "seen").touch()
    inside(f"import os; os.symlink({LINKS[link](open_place)!r}, '/mnt/data')", "--mnt", folder)
    assert (folder / "data" / "seen").exists(), "outside the link leads there"

    def lend(name):
        words = [word.format(secret=secret, folder=secret.parent, name=name) for word in LENDING[what]]
        return pctx("run", "--mnt", folder, *words, "--", "true")

    done = lend("data")
    assert done.returncode == 125 and re.search(
        "cannot mount at /mnt/data.* in the box: a link is in the way", done.stderr
    )
    assert lend("real").returncode == 0


@pytest.mark.parametrize("what", LENDING)
def test_planted_link_is_no_place_to_mount_at(inside, pctx, tmp_path, secret, open_place, what):
    folder = tmp_path / "work"
    folder.mkdir()
    inside(f"import os; os.symlink({LINKS['through the root'](open_place / 'new')!r}, '/mnt/planted')", "--mnt", folder)
    words = [word.format(secret=secret, folder=secret.parent, name=".").replace("/./", "/") for word in LENDING[what]]
    done = pctx("run", "--mnt", folder, *words, "--", "true")
    assert done.returncode == 125 and "/mnt/planted in the box: a link is in the way" in done.stderr
    assert list(open_place.iterdir()) == [] and (folder / "planted").is_symlink()


@pytest.mark.parametrize("what", LENDING)
def test_engine_makes_nothing_in_a_lent_folder(inside, pctx, tmp_path, secret, what):
    """What it made for a mount would stay there, and be listed as the guest's doing."""
    folder = tmp_path / "work"
    folder.mkdir()
    words = [word.format(secret=secret, folder=secret.parent, name="new") for word in LENDING[what]]
    done = pctx("run", "--mnt", folder, *words, "--", "true")
    assert done.returncode == 125 and "nothing is made in a folder of yours" in done.stderr
    assert list(folder.iterdir()) == []
    (folder / "new").mkdir()
    (folder / "new" / "planted").touch() if what == "a file" else (folder / "new" / "planted").mkdir()
    ended = inside(["true"], "--mnt", folder, *words, "--changed")
    assert ended.status == 0 and not ended.changed["created"]


@pytest.mark.parametrize("place", ["/p", "/var/tmp/p"])
@pytest.mark.parametrize("words", [["--rw", "--ro"], ["--ro", "--rw"], ["policy"]], ids=" ".join)
def test_what_is_lent_read_only_in_a_writable_folder_stays_read_only(pctx, tmp_path, words, place):
    """Also if the box's own links lead there: its /var/tmp is /tmp."""
    hooks = tmp_path / "project" / ".git"
    hooks.mkdir(parents=True)
    same = place.removeprefix("/var")
    lent = {"--rw": f"{tmp_path}/project:{same}", "--ro": f"{hooks}:{place}/.git"}
    options = [part for word in words if word in lent for part in (word, lent[word])]
    if words == ["policy"]:
        policy = tmp_path / "policy.json"
        policy.write_text(json.dumps({"files": {option[2:]: [value] for option, value in lent.items()}}))
        options = ["--policy", policy]
    done = pctx("run", "-q", *options, "--", "sh", "-c", f"touch {same}/new; touch {same}/.git/hook")
    assert f"{same}/.git/hook" in done.stderr and os.listdir(hooks) == []
    assert (tmp_path / "project" / "new").exists()
    control = pctx("run", "-q", "--rw", lent["--rw"], "--", "touch", f"{same}/.git/hook")
    assert control.returncode == 0 and os.listdir(hooks) == ["hook"]


@pytest.mark.parametrize("folder", ["--mnt", "--rw"])
def test_what_is_lent_read_only_deep_in_a_writable_folder_stays_where_it_is(pctx, tmp_path, folder):
    """What is mounted moves with a folder above it, and another one is made in its place."""
    hooks = tmp_path / "project/a/b/.git"
    hooks.mkdir(parents=True)
    base = "/mnt" if folder == "--mnt" else "/p"
    lent = [folder, f"{tmp_path}/project" + ("" if folder == "--mnt" else ":/p")]
    line = "mv {0}/a/b {0}/c || mv {0}/a {0}/c; mkdir -p {0}/a/b/.git; touch {0}/a/b/.git/hook {0}/a/b/new"
    done = pctx("run", "-q", *lent, "--ro", f"{hooks}:{base}/a/b/.git", "--", "sh", "-c", line.format(base))
    assert done.stderr.count("Device or resource busy") == 2 and os.listdir(hooks) == []
    assert sorted(os.listdir(hooks.parent)) == [".git", "new"]
    control = pctx("run", "-q", *lent, "--", "sh", "-c", line.format(base))
    assert control.returncode == 0 and os.listdir(hooks) == ["hook"] and (tmp_path / "project/c/.git").exists()


def test_planted_link_does_not_redirect_the_report(inside, pctx, tmp_path):
    folder, victim = tmp_path / "work", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("precious")
    inside(f"import os; os.symlink({str(victim)!r}, '/mnt/report.json')", "--mnt", folder)
    pctx("run", "--mnt", folder, "--report", folder / "report.json", "--", "true")
    assert victim.read_text() == "precious"


def test_guest_cannot_forge_the_report(pctx, tmp_path):
    folder, link, report = tmp_path / "work", tmp_path / "link", tmp_path / "report.json"
    folder.mkdir(), link.symlink_to(folder)
    forge = ["--", "sh", "-c", "rm -f /mnt/report.json; echo '{}' > /mnt/report.json; exit 3"]
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"files": {"mnt": str(folder)}}))
    for lent in (["--mnt", folder], ["--mnt", link], ["--rw", f"{folder}:/mnt"], ["--policy", policy]):
        for place in (folder / "report.json", link / "report.json"):
            done = pctx("run", "-q", *lent, "--report", place, *forge)
            assert done.returncode == 125 and "--report" in done.stderr and "is lent to be written" in done.stderr
            assert "hint: the guest could put a report of its own there" in done.stderr
            assert json.loads(place.read_text())["error"]["kind"] == "usage"
    with open(folder / "report.json", "w") as file:
        fd = file.fileno()
        assert pctx("run", "--mnt", folder, "--report", f"/dev/fd/{fd}", *forge, pass_fds=[fd]).returncode == 125
    assert pctx("run", "-q", "--mnt", folder, "--report", report, *forge).returncode == 3
    assert (folder / "report.json").read_text() == "{}\n"
    assert json.loads(report.read_text())["exit_status"] == 3
    assert pctx("run", "-q", "--ro", f"{folder}:/mnt", "--report", folder / "report.json", "--", "true").returncode == 0


def test_guest_leaves_no_text_behind_in_the_report(pctx, tmp_path):
    folder, report = tmp_path / "work", tmp_path / "report.json"
    folder.mkdir()
    report.touch()
    os.link(report, folder / "twin")
    (folder / "twin").chmod(0o666)
    code = "import os; os.write(os.open('/mnt/twin', os.O_WRONLY), b'x' * 100000); print(os.stat('/mnt/twin').st_size)"
    done = pctx("run", "-q", "--mnt", folder, "--report", report, "--", "python3", "-c", code)
    assert (done.returncode, done.stdout) == (0, "100000\n")
    assert json.loads(report.read_text())["exit_status"] == 0


def test_changed_lists_traps_without_opening_them(inside, tmp_path, secret):
    code = (
        "import os, socket\n"
        "os.symlink('/etc/passwd', 'link'); os.symlink('/', 'root'); os.symlink('link2', 'link2')\n"
        "os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('sock')\n"
        "open('plain', 'w').write('1'); os.link('plain', 'twin')\n"
        "open('new\\x1b]0;title\\x07.txt', 'w').write('x')\n"
        "os.makedirs('/'.join(['d'] * 300), exist_ok=True)\n"
    )
    ended = inside(code, "--mnt", tmp_path, "--changed")
    skipped = {entry["path"]: entry["reason"] for entry in ended.changed["skipped"]}
    assert {"link", "root", "link2"} <= {path for path, reason in skipped.items() if "link" in reason}
    assert "FIFO" in skipped["fifo"] and "socket" in skipped["sock"]
    assert {"plain", "twin"} <= skipped.keys()
    assert [path for path in ended.changed["created"] if "title" in path] == ["new\\x1b]0;title\\x07.txt"]
    assert "\x1b" not in str(ended.changed)


def test_guest_cannot_make_devices(inside, outside, tmp_path):
    code = (
        "import os, stat\n"
        "for number, (kind, major, minor) in enumerate(DEVICES):\n"
        "    try: os.mknod(f'/mnt/dev{number}', kind | 0o666, os.makedev(major, minor)); print('made')\n"
        "    except OSError as error: print(error.errno)\n"
        "os.mknod('/mnt/plain', stat.S_IFREG | 0o600); os.mkfifo('/mnt/fifo'); print('ok')\n"
    )
    # Since Linux 5.8 anybody may make the device 0:0, the mark of a deleted file in an overlay: his control.
    devices = [(stat.S_IFCHR, 0, 0), (stat.S_IFCHR, 1, 3), (stat.S_IFBLK, 1, 3)]
    control, lent = tmp_path / "control", tmp_path / "lent"
    control.mkdir()
    lent.mkdir()
    made = outside(code.replace("DEVICES", repr(devices)).replace("/mnt/", f"{control}/")).stdout.split()
    assert made == (["made"] * 3 if os.geteuid() == 0 else ["made", "1", "1"]) + ["ok"]
    ended = inside(code.replace("DEVICES", repr(devices)), "--mnt", lent)
    assert ended.stdout.split() == ["1", "1", "1", "ok"]
    assert ended.denied("mknodat") or ended.denied("mknod")
    assert {entry.name for entry in os.scandir(lent)} == {"plain", "fifo"}


@pytest.mark.root_only  # who makes a device for the guest to open
def test_devices_in_a_lent_folder_are_dead(inside, outside, tmp_path):
    os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (tmp_path / "plain").touch()
    for name in ("null", "plain"):
        os.chmod(tmp_path / name, 0o666)
    code = (
        "for name in ('null', 'plain'):\n"
        "    try: open(f'/mnt/{name}'); print('open')\n"
        "    except OSError as error: print(error.errno)\n"
    )
    assert outside(code.replace("/mnt/", f"{tmp_path}/")).stdout.split() == ["open", "open"]
    assert inside(code, "--mnt", tmp_path).stdout.split() == ["13", "open"]


def test_guest_cannot_hard_link_out_of_its_folder(inside, tmp_path, secret):
    code = (
        "import os\n"
        "for source in ('/lent/secret.txt', '/etc/passwd', '/usr/bin/env'):\n"
        "    try: os.link(source, '/mnt/hard'); print('linked')\n"
        "    except OSError as error: print(error.errno)\n"
        "open('/mnt/a', 'w'); os.link('/mnt/a', '/mnt/b'); print('ok')\n"
    )
    ended = inside(code, "--mnt", tmp_path, "--ro", f"{secret.parent}:/lent")
    refused = ended.stdout.split()
    assert refused[-1] == "ok" and len(refused) == 4 and set(refused[:3]) <= {"18", "13", "1"}


def test_sockets_are_never_lent(pctx, tmp_path):
    import socket

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "service.sock"))
        for option, value in (("--ro", f"{tmp_path}/service.sock"), ("--rw", f"{tmp_path}/service.sock:/s")):
            done = pctx("run", option, value, "--", "true")
            assert done.returncode == 125 and "neither a file nor a folder" in done.stderr


@pytest.mark.parametrize("place", ["/", "/proc", "/sys", "/dev"])
def test_places_that_undo_the_box_are_never_lent(pctx, place):
    done = pctx("run", "--ro", f"{place}:/lent", "--", "true")
    assert done.returncode == 125 and "never lent" in done.stderr


@pytest.mark.parametrize(
    "target", ["/proc/self", "/dev/null", "/sys", "/etc", "/", "relative", "/a/../b", "/a//b", "/etc/mtab"]
)
def test_nothing_is_lent_over_what_the_box_is_made_of(pctx, secret, target):
    done = pctx("run", "--ro", f"{secret}:{target}", "--", "true")
    assert done.returncode == 125 and done.stderr.startswith("pctx-sandbox: --ro")
