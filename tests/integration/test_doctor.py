"""`doctor` tells the truth about this host, `setup` changes only what it has shown, completions complete."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

LAYERS = [
    *("user", "pid", "mount", "network", "ipc", "uts", "cgroup-namespace", "proc", "capabilities", "no-new-privs"),
    *("seccomp", "landlock", "subordinate-ids", "cgroups", "apparmor"),
]


def doctor(pctx, *args, **options):
    done = pctx("doctor", *args, **options)
    assert done.stderr == "", done.stderr
    return done


# --- doctor ---


def test_a_host_that_runs_a_box_is_ready(pctx):
    assert pctx("run", "--", "true").returncode == 0  # the control: a box does run here
    done = doctor(pctx)
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "ready: a box runs here with every required layer"
    assert re.search(r"^tried: 'true' in a box .* exited after \d+ ms$", done.stdout, re.MULTILINE), done.stdout


def test_every_layer_is_named_once_and_agrees_with_the_receipt_of_a_run(pctx):
    text = doctor(pctx).stdout
    receipt = pctx("run", "--json", "--", "true").json()["receipt"]["layers"]
    layers = {entry["name"]: entry for entry in doctor(pctx, "--json").json()["layers"]}
    assert LAYERS and list(layers) == LAYERS
    for name in LAYERS:
        assert len(re.findall(rf"^ +(?:on|off|OFF) {name} ", text, re.MULTILINE)) == 1, (name, text)
    on = {name: entry["on"] for name, entry in layers.items()}
    assert on == {name: layer_is_on(receipt, name) for name in LAYERS}


def layer_is_on(receipt, name):
    return receipt[name]["on"] if isinstance(receipt, dict) else next(e["on"] for e in receipt if e["name"] == name)


def test_the_facts_are_those_of_this_host(pctx):
    facts = doctor(pctx, "--json").json()["host"]
    assert os.uname().release in facts["kernel"] and "5.10" in facts["kernel"]
    assert facts["identity"].startswith("root") == (os.geteuid() == 0)
    assert {"cgroups", "landlock", "apparmor", "subordinate ids"} <= facts.keys()


def test_the_report_fits_a_screen_and_has_no_colour_in_a_pipe(pctx):
    done = doctor(pctx)
    assert "\x1b" not in done.stdout
    assert len(done.stdout.splitlines()) <= 40


@pytest.mark.parametrize("no_colour", [False, True])
def test_a_terminal_gets_colour_unless_no_color_is_set(sandbox_bin, skip_unless, no_colour):
    skip_unless(shutil.which("script"), "script(1), which makes a terminal")
    env = {k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"TERM": "xterm"}
    if no_colour:
        env["NO_COLOR"] = "1"
    command = ["script", "-qec", f"{sandbox_bin} doctor", "/dev/null"]
    done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert ("\x1b[32m" in done.stdout) == (not no_colour), done.stdout


def test_a_check_leaves_the_callers_input_alone(sandbox_bin):
    line = f"{sandbox_bin} doctor >/dev/null; cat"
    done = subprocess.run(["bash", "-c", line], input="still here\n", capture_output=True, text=True, timeout=60)
    assert done.stdout == "still here\n"


# --- hosts that refuse, made with namespaces ---


def inside(sandbox_bin, script, *flags):
    """Runs a script in namespaces of its own; $PCTX is the program. Nothing it does there reaches the host."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("SUDO_")} | {"PCTX": sandbox_bin}
    command = ["unshare", *flags, "bash", "-ec", script]
    return subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


SWITCHED_OFF = "echo 0 > /proc/sys/user/max_user_namespaces\n"


@pytest.fixture
def own_users(sandbox_bin, skip_unless):
    """A user namespace of its own, whose limit of namespaces can be set without touching the host's."""
    done = inside(sandbox_bin, "$PCTX doctor | tail -n 1", "--user", "--map-root-user", "--mount")
    skip_unless(done.returncode == 0, "unshare(1) with user namespaces")
    assert done.stdout.startswith("ready:"), done.stdout  # the control: a box runs in there
    return lambda script: inside(sandbox_bin, script, "--user", "--map-root-user", "--mount")


def test_switched_off_user_namespaces_are_found_with_the_setting_that_helps(own_users):
    done = own_users(SWITCHED_OFF + "$PCTX doctor || echo status=$?")
    assert "status=1" in done.stdout
    assert "user namespaces are switched off (user.max_user_namespaces = 0)" in done.stdout, done.stdout
    assert "No space left on device" not in done.stdout.split("\nrequired\n")[1].split("\nbackends\n")[0], done.stdout
    assert len(re.findall("^ +OFF .* not tried: it takes a user namespace$", done.stdout, re.MULTILINE)) == 5
    assert "pctx-sandbox doctor" not in done.stdout, "it sends nobody to itself"
    assert done.stdout.splitlines()[-2].startswith("not ready: ") and "first fix: " in done.stdout.splitlines()[-2]


def test_what_json_and_text_advise_is_the_same(own_users):
    done = own_users(SWITCHED_OFF + "$PCTX doctor --json || true; echo; echo ======; $PCTX doctor || true")
    data, text = done.stdout.split("======")
    report = json.loads(data)
    assert not report["ready"] and report["remedies"][0]["blocks"]
    for remedy in report["remedies"]:
        assert all(line in text for line in (remedy["why"], *remedy["commands"])), text


def test_setup_fixes_what_doctor_found_and_then_has_nothing_to_do(own_users, skip_unless):
    skip_unless(Path("/etc/sysctl.d").is_dir() and shutil.which("sysctl", path="/usr/sbin:/sbin"), "sysctl(8)")
    done = own_users(
        "mount -t tmpfs none /etc/sysctl.d\n"
        + SWITCHED_OFF
        + "$PCTX doctor >/dev/null && exit 9\n"
        + "$PCTX setup --yes\n"
        + "echo ======; cat /proc/sys/user/max_user_namespaces /etc/sysctl.d/*\n"
        + "echo ======; $PCTX setup; $PCTX doctor | tail -n 1\n"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown, changed, after = done.stdout.split("======\n")
    assert "tee /etc/sysctl.d/60-pctx-sandbox-namespaces.conf" in shown and "done" in shown
    assert changed.splitlines() == ["15000", "user.max_user_namespaces = 15000"]
    assert after.splitlines()[0].startswith("nothing to do")
    assert after.splitlines()[-1].startswith("ready:")


@pytest.mark.parametrize("words", ["setup", "setup --dry-run"])
def test_setup_changes_nothing_without_consent(own_users, words):
    done = own_users(SWITCHED_OFF + f"$PCTX {words} || echo status=$?\ncat /proc/sys/user/max_user_namespaces")
    assert "sysctl -p /etc/sysctl.d/60-pctx-sandbox-namespaces.conf" in done.stdout, "it is shown"
    assert done.stdout.splitlines()[-1] == "0", "and not run"
    if words == "setup":
        assert "status=125" in done.stdout and "--yes" in done.stderr, done.stderr


def test_an_ordinary_user_is_shown_the_lines_with_sudo_and_none_is_run(own_users, sandbox_bin):
    show = SWITCHED_OFF + "$PCTX setup || echo status=$?\ncat /proc/sys/user/max_user_namespaces"
    assert "\ntee " in own_users(show).stdout  # the control: root needs no sudo
    done = inside(sandbox_bin, show, "--user", "--map-user=1000", "--keep-caps")
    assert "\nsudo tee /etc/sysctl.d/60-pctx-sandbox-namespaces.conf" in done.stdout, done.stdout + done.stderr
    assert re.search(r"need root.* sudo \S*pctx\S* setup$", done.stdout, re.MULTILINE), done.stdout
    assert done.stdout.splitlines()[-2:] == ["status=1", "0"]


@pytest.mark.root_only
def test_a_podman_container_with_masked_proc_gets_the_option_that_unmasks_it(sandbox_bin):
    mask = "mount -t tmpfs none /run && touch /run/.containerenv && mount --bind /dev/null /proc/version\n"
    flags = ("--mount", "--pid", "--fork", "--uts", "--ipc", "--mount-proc")
    control = inside(sandbox_bin, "$PCTX doctor | tail -n 1", *flags)
    assert control.stdout.startswith("ready:"), control.stdout
    done = inside(sandbox_bin, mask + "$PCTX doctor || echo status=$?", *flags)
    assert "status=1" in done.stdout
    assert "podman run --security-opt unmask=ALL IMAGE" in done.stdout, done.stdout
    assert re.search(r"^ +OFF proc ", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.root_only
def test_root_without_capabilities_is_told_which_one_it_needs(sandbox_bin):
    def call(capabilities, *words):
        command = ["setpriv", f"--bounding-set={capabilities}", sandbox_bin, *words]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)

    assert call("-all,+setfcap", "run", "-q", "--", "true").returncode == 0  # the control
    done = call("-all", "doctor")
    assert done.returncode == 1 and "CAP_SETFCAP" in done.stdout, done.stdout
    assert re.search(r"^ +OFF user ", done.stdout, re.MULTILINE), done.stdout
    assert "seccomp=unconfined" not in done.stdout
    refused = call("-all", "run", "--", "true")
    assert refused.returncode == 125 and "root here has no CAP_SETFCAP" in refused.stderr, refused.stderr


def test_a_box_without_proc_takes_cgroups(own_users):
    masked = "mount --bind /dev/null /proc/keys\necho ======\n"
    run = "$PCTX run --backend namespaces {} -- echo ran 2>&1 || echo status=$?\necho ======\n"
    done = own_users(run.format("-q --json") + masked + run.format("") + run.format("--allow-degraded proc"))
    control, _, refused, degraded, _ = done.stdout.split("======\n")
    assert "status=125" in refused and "this host refuses a new /proc" in refused, refused
    if json.loads(control)["receipt"]["layers"]["cgroups"]["on"]:
        assert "accept a box without /proc" in refused, refused
        assert degraded.splitlines()[-1] == "ran", degraded
    else:
        assert "accept a box without /proc" not in refused, "what this host cannot do is no advice"
        assert "--allow-degraded proc: limits are bound by a watchdog here" in degraded, degraded


@pytest.mark.root_only
def test_root_is_told_what_an_ordinary_user_would_get(pctx):
    report = doctor(pctx, "--json").json()
    assert "a box runs" in report["ordinary_user"]["summary"], report["ordinary_user"]


@pytest.mark.root_only
def test_helpers_that_are_installed_are_not_missed_for_ordinary_users(sandbox_bin, skip_unless):
    skip_unless(
        all(os.access(f"/usr/bin/{name}", os.X_OK) for name in ("newuidmap", "newgidmap")), "the package uidmap"
    )

    def whys(before):
        done = inside(sandbox_bin, before + "$PCTX doctor --json", "--mount")
        return [remedy["why"] for remedy in json.loads(done.stdout)["ordinary_user"]["remedies"]]

    missing = "newuidmap and newgidmap are not installed: a guest has the caller's uid"
    assert missing in whys("mount --bind /dev/null /usr/bin/newuidmap\n")  # the control: it is said where it is so
    assert [why for why in whys("") if "newuidmap" in why or "subordinate ids" in why] == []


# --- completions ---


@pytest.fixture(scope="module")
def complete(pctx):
    """complete("run", "--mem") is what bash offers for that line."""
    script = pctx("completions", "bash").stdout
    assert "complete " in script

    def run(*words):
        code = f"""{script}
        COMP_WORDS=(pctx-sandbox "$@"); COMP_CWORD=$#
        function=$(complete -p pctx-sandbox | sed -n 's/.* -F \\([^ ]*\\) .*/\\1/p')
        "$function" pctx-sandbox "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD - 1]}}"
        printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(["bash", "-c", code, "bash", *words], capture_output=True, text=True, timeout=30)
        assert done.stderr == "", done.stderr
        return set(done.stdout.split())

    return run


def test_bash_completes_verbs_options_and_values(complete, tmp_path):
    assert {"run", "doctor", "setup", "explain", "completions", "help", "--version"} <= complete("")
    assert complete("do") == {"doctor"}
    assert complete("run", "--mem") == {"--memory"}
    assert complete("run", "--network", "h") == complete("run", "--network", "=", "h") == {"host"}
    assert complete("run", "--require", "landlock,cgroups,ap") == {"landlock,cgroups,apparmor"}
    assert complete("run", "--backend", "") == {"auto", "namespaces", "podman", "lima"}
    assert complete("stop", "--backend", "p") == complete("env", "list", "--backend", "p") == {"podman"}
    assert complete("completions", "z") == {"zsh"}
    assert complete("help", "do") == {"doctor"}
    assert complete("run", "--memory", "") == set(), "a size is not a file"
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    assert complete("run", "--mnt", f"{tmp_path}/f") == {f"{tmp_path}/folder"}
    assert complete("run", "--policy", f"{tmp_path}/f") == {f"{tmp_path}/folder", f"{tmp_path}/file"}


def test_behind_the_dashes_bash_completes_commands_and_no_option_of_ours(complete):
    assert "truncate" in complete("run", "--", "trunc")
    assert complete("run", "--", "--mem") == set()
    assert complete("run", "ls", "--mem") == complete("run", "--memory", "1G", "-q", "ls", "--mem") == set()
    assert complete("explain", "run", "--mem") == {"--memory"}
    assert complete("explain", "run", "ls", "--mem") == set()
    for before in (["--memory", "1G"], ["--memory", "=", "1G"], ["-q"], []):
        assert complete("run", *before, "--mem") == {"--memory"}, before


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_names_every_option_of_every_verb(pctx, shell):
    script = pctx("completions", shell).stdout
    for verb in ("run", "doctor", "setup", "explain"):
        options = set(re.findall(r"^\s+(?:-\w,)?--([a-z-]+)", pctx(verb, "--help").stdout, re.MULTILINE))
        assert len(options) >= 2
        dashes = "-l " if shell == "fish" else "--"
        assert [name for name in options if f"{dashes}{name}" not in script] == []


def test_the_shells_read_their_scripts(pctx, tmp_path, skip_unless):
    missing = {shell for shell in ("bash", "zsh", "fish") if not shutil.which(shell)}
    for shell in {"bash", "zsh", "fish"} - missing:
        file = tmp_path / shell
        file.write_text(pctx("completions", shell).stdout)
        assert subprocess.run([shell, "-n", file], capture_output=True, text=True).stderr == "", shell
        file.write_text("for (((")  # the control: the shell does complain
        assert subprocess.run([shell, "-n", file], capture_output=True, text=True).stderr != "", shell
    skip_unless(not missing, f"also {' and '.join(sorted(missing))}, whose scripts nobody has read here")


def test_zsh_gets_actions_that_it_can_read(pctx):
    actions = re.findall(r"^ +'\*--[a-z-]+\[.*\]:[^:]+:(.*)' ?\\?$", pctx("completions", "zsh").stdout, re.MULTILINE)
    assert r"(none allow\: host)" in actions and "_files -/" in actions
    assert [action for action in actions if re.search(r"(?<!\\):|value $", action)] == []


def test_an_unknown_shell_is_refused_with_the_known_ones(pctx):
    done = pctx("completions", "tcsh")
    assert done.returncode == 125 and "bash" in done.stderr and done.stdout == ""
