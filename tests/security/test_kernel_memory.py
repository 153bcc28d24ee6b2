"""What the kernel keeps for a guest and charges to nobody is refused, or bounded by another limit. The control is a box
with a profile that allows every call: there the kernel grants it."""

import json
from pathlib import Path

import pytest

E2BIG, EPERM = 7, 1
REFUSED = {
    "large access lists of files in memory": (["acl", "65536"], "setxattr", E2BIG),
    "policies for pages of files in memory": (["policies", "64"], "mbind", EPERM),
    "filters of sockets": (["program", "26"], "setsockopt", EPERM),
    "programs that choose among sockets": (["program", "51"], "setsockopt", EPERM),
    "threads that wait as for the exec of a child": (["waiting-thread"], "clone", EPERM),
}


@pytest.fixture(scope="module")
def allow_all(tmp_path_factory):
    profile = tmp_path_factory.mktemp("profile") / "all.json"
    profile.write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []}))
    return profile


@pytest.mark.parametrize("what", REFUSED)
def test_guest_cannot_have(attack, allow_all, what):
    words, call, code = REFUSED[what]
    ended = attack("uncharged", *words)
    assert ended.stdout == f"refused {call} {code}\n" and ended.denied(call)
    control = attack("uncharged", *words, options=("--seccomp", allow_all))
    assert control.stdout.startswith("had "), control.stdout


def test_guest_may_have_small_access_lists(attack):
    """As cp and tar copy them."""
    assert attack("uncharged", "acl", "256").stdout == "had 31\n"


def test_queues_of_watchers_are_bounded_by_the_memory_limit(attack, without_cgroups):
    """A queue holds 8 MiB of events."""
    assert attack("uncharged", "instances", "100", options=("--memory", "128M")).stdout == "had 2\n"
    assert attack("uncharged", "instances", "100", options=("--memory", "1G")).stdout == "had 16\n"


def test_guest_has_no_huge_pages_where_no_cgroup_counts_them(attack, attacker, outside, without_cgroups):
    """/proc shows what is mapped of them, and the kernel keeps them whole."""
    setting = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    if not setting.exists() or "[never]" in setting.read_text():
        pytest.skip("needs a kernel that gives huge pages to those who ask (transparent_hugepage)")
    assert outside([attacker("uncharged"), "huge-pages", "4"]).stdout == "had 8\n"
    assert attack("uncharged", "huge-pages", "4").stdout == "had 0\n"
