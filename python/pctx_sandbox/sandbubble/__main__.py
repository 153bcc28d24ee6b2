"""`python -m pctx_sandbox.sandbubble`: checks on this host that boxes with a virtualenv hold, or opens a prompt in one.

The work is the engine's: `pctx-sandbox apparmor status`, `pctx-sandbox selfcheck`, `pctx-sandbox shell`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from .. import _program
from ..errors import SandboxError
from .config import PROFILE_VARIABLE, VENV_VARIABLE, SandboxConfig, get_default_sandbox_config
from .virtualenv import inspect_virtualenv

EXTRA_FILE = "sandbox_extra_tests.py"


def main(
    arguments: Sequence[str] | None = None, program: str = "python -m pctx_sandbox.sandbubble", extra_tests: bool = True
) -> int:
    """The command. `extra_tests` says whether the extended suite is there to be run."""
    options = _parser(program).parse_args(arguments)
    try:
        conf = _configuration(options)
        inspect_virtualenv(conf.venv_path)
        if conf.apparmor_profile_name is not None and not _profile_is_ready(conf, options.ignore_profile_diffs):
            return 1
        if options.interactive:
            return _prompt(conf)
        extra = options.extra_tests and extra_tests
        if options.extra_tests and not extra:
            _say(f"{EXTRA_FILE} is not beside {program}, so that only the base suite runs")
        return _self_check(conf, extra, options.verbose)
    except (SandboxError, ValueError) as error:
        _say(str(error))
        return 1


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=program,
        description="Checks from inside that boxes with this virtualenv hold on this host, or opens a prompt in one.",
        epilog=f"Without --venv and --apparmor-profile-name: {VENV_VARIABLE} and {PROFILE_VARIABLE}.",
    )
    parser.add_argument("--venv", metavar="PATH", help="the virtualenv; together with --apparmor-profile-name")
    parser.add_argument("--apparmor-profile-name", metavar="NAME", help="the AppArmor profile; together with --venv")
    network = parser.add_mutually_exclusive_group()
    network.add_argument("--enable-network", action="store_true", help="with network (the default)")
    network.add_argument("--disable-network", action="store_true", help="without network")
    parser.add_argument("--verbose", action="store_true", help="print every result, not only failures")
    parser.add_argument("--extra-tests", action="store_true", help="also run the extended suite")
    parser.add_argument("--ignore-profile-diffs", action="store_true", help="go on if the installed profile differs")
    parser.add_argument("--interactive", action="store_true", help="a Python prompt in a box; /mnt goes away with it")
    return parser


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _configuration(options: argparse.Namespace) -> SandboxConfig:
    venv, profile = options.venv, options.apparmor_profile_name
    if venv and profile:
        return SandboxConfig(venv, profile, enable_network=not options.disable_network)
    if venv or profile:
        lone, other = ("--venv", "--apparmor-profile-name") if venv else ("--apparmor-profile-name", "--venv")
        _say(f"{lone} is ignored without {other}; {VENV_VARIABLE} and {PROFILE_VARIABLE} are used")
    named = get_default_sandbox_config()
    return SandboxConfig(named.venv_path, named.apparmor_profile_name, enable_network=not options.disable_network)


def _ask(command: list[str]) -> dict[str, Any]:
    """The engine's answer, which is JSON whatever its status; words of its own when it has none."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        words = done.stderr.decode("utf-8", "replace").strip() or f"the engine ended with status {done.returncode}"
        raise SandboxError(words) from None
    return answer if isinstance(answer, dict) else {}


def _settings(conf: SandboxConfig) -> list[str]:
    profile = conf.apparmor_profile_name
    network = ["--network", "host" if conf.enable_network else "none"]
    return ["--venv", os.fspath(conf.venv_path), *network, *(["--apparmor", profile] if profile else [])]


def _profile_is_ready(conf: SandboxConfig, ignore_diffs: bool) -> bool:
    name, venv = conf.apparmor_profile_name or "", os.fspath(conf.venv_path)
    command = [_program.find_program(), "apparmor", "status", "--json", "--name", name, "--venv", venv]
    status = _ask([*command, *(["--ignore-profile-diffs"] if ignore_diffs else [])])
    if status["ready"]:
        return True
    if not status["kernel"]:
        _say(f"{status['problem']}\nhint: set {VENV_VARIABLE} alone to run without a profile on this host")
        return False
    if status["installed"] == "not there":
        print(f"# the content of {status['file']}\n{status['text']}")
    elif status["diff"]:
        print(f"# {status['file']}: - installed, + wanted\n{status['diff']}")
    print(f"# lines that install it\n{status['install_commands']}", end="", flush=True)
    _say(status["problem"])
    return False


def _prompt(conf: SandboxConfig) -> int:
    program = _program.find_program()
    os.execv(program, [program, "shell", *_settings(conf)])


def _self_check(conf: SandboxConfig, extra: bool, verbose: bool) -> int:
    command = [_program.find_program(), "selfcheck", "--json", *_settings(conf), *(["--extra"] if extra else [])]
    found = _ask(command)
    for finding in found["findings"]:
        if finding["verdict"] != "held":
            print(f"{finding['verdict'].upper()} {finding['name']}: {finding['tried']}: {finding['seen']}")
        elif verbose:
            print(f"held {finding['name']}: {finding['tried']}: {finding['seen']} ({finding['stopped_by']})")
    for absent in found["absent"] if verbose else ():
        print(f"absent {absent['name']}: {absent['why']}")
    sys.stdout.flush()
    if found["ok"]:
        print(f"all {found['held']} properties hold here; an open box fails the same probes", flush=True)
        return 0
    if "error" in found:
        _say(f"SELF-CHECK FAILED: no box can be made: {found['error']['message']}\nhint: {found['error']['hint']}")
    else:
        _say(f"SELF-CHECK FAILED: {found['failed']} do not hold, {found['blind']} could not be shown")
    return 1


if __name__ == "__main__":
    sys.exit(main())
