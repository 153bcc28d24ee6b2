"""Mounts of the host and mounts of a box never reach each other. Where systemd started the host all its mounts are
shared; these tests bring a shared one of their own, in a mount namespace that ends with them."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.root_only  # who may make shared mounts; the boxes are an ordinary user's too

CALLERS = {
    "root": "",
    "user": "setpriv --reuid 65534 --regid 65534 --clear-groups env -i PATH=/usr/bin:/bin HOME=/ ",
}
SHARED = """
cd {place}
mount -t tmpfs -o mode=0755 shared shared
mount --make-rshared shared
cd shared
mkdir -p lent/cache lent/lib lent/usb other
touch other/of-the-caller
chown -R {owner} lent
chmod -R a+rwX lent  # file systems in memory have no id-mapped mounts before Linux 6.3
mounts() {{ grep -c " {place}/shared" /proc/self/mountinfo; }}
"""


@pytest.fixture(params=CALLERS)
def on_shared_mount(request, sandbox_bin):
    """Runs lines of shell where $RUN starts a box, in a folder on a shared mount: `lent`, the caller's, and `other`."""
    place = Path(tempfile.mkdtemp(prefix="pctx-t-", dir="/tmp"))
    place.chmod(0o755)
    (place / "shared").mkdir()
    program = sandbox_bin  # not a copy where it need not be: a host with AppArmor may know it by its path
    if not all(folder.stat().st_mode & 0o001 for folder in Path(sandbox_bin).resolve().parents):
        program = shutil.copy(sandbox_bin, place / "pctx-sandbox")

    def run(lines):
        begin = SHARED.format(place=place, owner="1000" if request.param == "root" else "65534")
        words = ["unshare", "--mount", "--propagation", "private", "sh", "-e", "-c", begin + lines]
        env = os.environ | {"RUN": f"{CALLERS[request.param]}{program} run -q --timeout 20s"}
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=env, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout.splitlines()

    yield run
    shutil.rmtree(place)


def test_what_a_box_mounts_in_a_lent_folder_stays_in_it(on_shared_mount):
    seen = on_shared_mount(
        "$RUN --mnt lent --tmpfs /mnt/cache --ro other:/mnt/lib -- "
        "sh -c 'echo in the box > /mnt/cache/file; ls /mnt/cache /mnt/lib'\n"
        "mounts; ls lent/cache lent/lib\n"
        # The control: a namespace that is not a box's.
        "unshare --mount --propagation unchanged mount -t tmpfs control lent/cache\n"
        "mounts\n"
    )
    assert seen == [
        *("/mnt/cache:", "file", "", "/mnt/lib:", "of-the-caller"),
        *("1", "lent/cache:", "", "lent/lib:", "2"),
    ]


@pytest.mark.parametrize("option", ["--ro", "--rw"])
def test_what_the_host_mounts_later_does_not_come_into_a_box(on_shared_mount, option):
    waits = "echo started; until [ -e {0}/go ]; do sleep 0.05; done; ls {0}/usb; grep -c /usb /proc/self/mountinfo"
    seen = on_shared_mount(
        # The control: a namespace that is not a box's.
        f"timeout 40 unshare --mount --propagation slave sh -c '{waits.format('lent')}' > control &\n"
        f"$RUN {option} lent:/lent -- sh -c '{waits.format('/lent')}' > box &\n"
        "until [ -s control ] && [ -s box ]; do kill -0 $!; sleep 0.05; done\n"
        "mount -t tmpfs later lent/usb; touch lent/usb/of-the-host lent/go\n"
        "wait; cat control box\n"
    )
    assert seen == ["started", "of-the-host", "1", "started", "0"]
