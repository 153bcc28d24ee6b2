"""Lent folders on every kernel: before 5.12 mount flags are set by the old remount, one mount at a time."""

import os
import subprocess

import pytest

pytestmark = pytest.mark.vm


@pytest.fixture(params=["lent", "lent by name"])
def nested(request, tmp_path):
    """A folder with another file system mounted inside, as /home often has; the kernel lists blanks in octal."""
    inner = tmp_path / request.param / "inner"
    inner.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=777", "inner", str(inner)], check=True)
    yield inner.parent
    subprocess.run(["umount", str(inner)], check=True)


@pytest.mark.root_only
def test_a_file_system_inside_a_folder_lent_read_only_is_read_only_or_refused(box, machine, nested):
    (nested / "inner/control").write_text("the control: writable outside")
    tmp_is_closed = [nested, *list(nested.parents)[:3]]
    for folder in tmp_is_closed:
        folder.chmod(0o755)
    code = "open('/data/inner/new', 'w')"
    ended = box("--ro", f"{nested}:/data", "--", "/usr/bin/python3", "-c", code)
    if machine.kernel < (5, 12):  # flags cannot be set for a whole tree there: refused before anything runs
        assert ended.status == 125 and ended.report["error"]["kind"] == "unavailable", ended
        cause = (
            f"{nested} has something mounted at {nested}/inner, which Linux {os.uname().release} cannot make read-only"
        )
        assert cause in ended.stderr and "hint: use Linux 5.12 or later" in ended.stderr, ended
        plain = nested.parent / "plain"
        plain.mkdir(mode=0o755)
        control = box("--ro", f"{plain}:/data", "--", "ls", "/data")
        assert control.status == 0, control
        return
    assert ended.status == 1 and "Read-only file system" in ended.stderr, ended
    assert not (nested / "inner/new").exists()


def test_every_mount_but_the_guests_own_is_read_only_and_none_honours_set_id(box):
    ended = box("--", "cat", "/proc/self/mountinfo")
    assert ended.status == 0, ended
    table = {line.split()[4]: line.split()[5].split(",") for line in ended.stdout.splitlines()}
    assert [path for path, flags in table.items() if "nosuid" not in flags] == [], ended
    writable = {path for path, flags in table.items() if "ro" not in flags}
    # Devices are written to through their files; the mount's flag does not matter to them.
    own = ("/tmp", "/home/", "/dev")
    assert {path for path in writable if not path.startswith(own)} == set(), ended
