"""The AppArmor profiles in the program are those that are packaged, and the parser takes them."""

import os
import re
import shutil
import subprocess

import project
import pytest

PROFILES = {"pctx-sandbox": "kLauncherProfileText", "pctx-sandbox-guest": "kGuestProfileText"}
SKIPPED_NOISE = re.compile(r"^(Warning from stdin|Cache read/write disabled).*\n", re.MULTILINE)


def embedded(constant):
    header = project.text("src/launch/apparmor_profiles.h")
    return re.search(rf'{constant} = R"profile\((.*?)\)profile"', header, re.DOTALL).group(1)


def parse(text):
    parser = shutil.which("apparmor_parser", path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if parser is None:
        pytest.skip("needs apparmor_parser (package apparmor)")
    command = [parser, "--skip-kernel-load", "--skip-cache", "--stdout"]
    done = subprocess.run(command, input=text.encode(), capture_output=True, timeout=60)
    return done.returncode, SKIPPED_NOISE.sub("", done.stderr.decode(errors="replace"))


@pytest.mark.parametrize("name", PROFILES)
def test_the_program_holds_the_packaged_profile(name):
    assert embedded(PROFILES[name]) == project.text(f"packaging/apparmor/{name}")


@pytest.mark.parametrize("name", PROFILES)
def test_the_parser_takes_the_profile(name):
    text = project.text(f"packaging/apparmor/{name}")
    assert parse(text.replace("profile pctx", "profil pctx"))[0] != 0  # the control: it does not take everything
    status, complaint = parse(text)
    if "abi/4.0" in complaint:  # an older parser knows no user namespaces; it can still read the rest
        status, complaint = parse(text.replace("abi/4.0", "abi/3.0").replace("\n  userns,\n", "\n"))
    assert (status, complaint) == (0, "")


def rules_of(profile):
    text = project.text("packaging/apparmor/pctx-sandbox-guest")
    body = re.search(rf"^profile {profile} .*?{{\n(.*?)^}}", text, re.DOTALL | re.MULTILINE).group(1)
    return [line.strip() for line in body.splitlines() if line.strip() and not line.strip().startswith("#")]


def test_the_guest_may_not_mount_trace_outside_or_hold_a_capability():
    rules = rules_of("pctx-sandbox-guest")
    for rule in ("deny mount,", "deny umount,", "deny pivot_root,", "deny capability,", "deny network packet,"):
        assert rule in rules
    assert not [rule for rule in rules if re.match(r"(capability|mount|userns|change_profile|dbus)\b", rule)]
    assert [rule for rule in rules if rule.startswith("ptrace (read")] == [
        "ptrace (read, trace) peer=pctx-sandbox-guest,",
        "ptrace (readby, tracedby),",
    ]


def test_a_zygote_may_do_what_a_guest_may_and_enter_boxes():
    guest = [rule.replace("-guest,", "-zygote,") for rule in rules_of("pctx-sandbox-guest")]
    rights = ["capability sys_admin,", "capability sys_chroot,", "capability setpcap,"]
    where = guest.index("deny capability,")
    assert rules_of("pctx-sandbox-zygote") == guest[:where] + rights + guest[where + 1 :]


def test_a_container_may_make_boxes_and_not_touch_the_host():
    rules = rules_of("pctx-sandbox-container")
    for rule in (
        "mount,",
        "pivot_root,",
        "deny capability sys_module,",
        "deny /proc/sysrq-trigger rwklx,",
        "network packet dgram,",
    ):
        assert rule in rules
    assert not [rule for rule in rules if re.match(r"(change_profile|dbus|network,|signal,|ptrace,)", rule)]
