"""Root and ordinary users enter the sandbox, with and without mount namespaces."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cuagent.sandbox import Tier, landlock
from cuagent.sandbox.probe import WITHOUT_VIEW

HERE = Path(__file__).parent
NOBODY = 65534
HONEST = """
set -e
echo '#include <vector>
extern "C" int three() { return std::vector<int>(3).size(); }' > a.cpp
g++ -shared -fPIC a.cpp -o a.so
cp -p a.cpp b.cpp
touch a.cpp
cmp a.cpp b.cpp
mkdir -p c && mv b.cpp c/
python3 -I -c 'import shutil; shutil.copy2("a.cpp", "d.cpp"); shutil.copytree("c", "e")'
python3 -I -c 'import ctypes; print(ctypes.CDLL("./a.so").three())'
"""
"""Commands of compilers, shells and copy programs that change metadata of their files."""


def _interpreter(user: str) -> list[str]:
    """Return the command of a Python that the user can start; skip the test if there is none."""
    if user == "root":
        if os.geteuid() != 0:
            pytest.skip("the tests do not run as root")
        return [sys.executable]
    for program in (sys.executable, "/usr/bin/python3"):
        check = [program, "-I", "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if subprocess.run(check, check=False, **_become(user)).returncode == 0:
                return [program]
        except OSError:
            continue
    pytest.skip("an ordinary user can start no Python here")


def _become(user: str) -> dict[str, Any]:
    if user == "root" or os.geteuid() != 0:
        return {}
    return {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}


@pytest.fixture(params=["root", "ordinary user"])
def user(request: pytest.FixtureRequest) -> str:
    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    chosen: str = request.param
    return chosen


@pytest.mark.parametrize("view", ["view", "no view"])
def test_escapes_fail_and_honest_commands_work(user: str, view: str, scratch: Path) -> None:
    if user != "root" and os.geteuid() == 0:
        os.chown(scratch, NOBODY, NOBODY)
    command = [*_interpreter(user), "-I", str(HERE / "as_user.py"), view, str(scratch)]
    done = subprocess.run(
        [*command, "bash", "-c", HONEST],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        **_become(user),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["code"], found["output"]) == (0, "3\n")
    assert found["tier"] == Tier.LANDLOCK
    if view == "view" and "names outside visible" not in found["stamp"]:
        assert "files outside hidden" in found["stamp"]
        assert found["succeeded"] == []
    else:
        assert set(found["succeeded"]) <= WITHOUT_VIEW
        assert "names outside visible" in found["stamp"]


def test_view_that_fails_half_way_leaves_no_rights(user: str, scratch: Path) -> None:
    if user != "root" and os.geteuid() == 0:
        os.chown(scratch, NOBODY, NOBODY)
    python = _interpreter(user)
    command = [*python, "-I", str(HERE / "without_open_tree.py"), *python, "-I"]
    done = subprocess.run(
        [
            *command,
            str(HERE / "as_user.py"),
            "view",
            str(scratch),
            "true",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        **_become(user),
    )
    found = json.loads(done.stdout)
    assert found["tier"] == Tier.LANDLOCK
    assert set(found["succeeded"]) <= WITHOUT_VIEW
    assert "names outside visible" in found["stamp"]


CONTAINER = "-sys_admin,-dac_read_search,-sys_resource,-net_admin,-sys_ptrace,-sys_nice,-ipc_lock"
"""Capabilities that root of a container usually lacks."""


def _is_open(program: Path) -> bool:
    """Return True if every user can start this program."""
    place = program.resolve()
    return place.exists() and all(folder.stat().st_mode & 1 for folder in (place, *place.parents))


def test_root_of_a_container_without_namespaces_is_isolated(scratch: Path) -> None:
    program = shutil.which("setpriv")
    if os.geteuid() != 0 or not landlock.abi() or program is None:
        pytest.skip("needs root, Landlock and setpriv")
    scratch.chmod(0o755)
    (scratch / "own").mkdir()
    own = sys.executable if _is_open(Path(sys.base_prefix)) else ""
    python = next((p for p in (own, "/usr/bin/python3") if p and _is_open(Path(p))), None)
    if python is None:
        pytest.skip("no Python here that other user ids can start")
    limited = [program, f"--bounding-set={CONTAINER}", "--inh-caps=-all", python, "-I"]
    done = subprocess.run(
        [*limited, str(HERE / "as_user.py"), "view", str(scratch / "own"), "bash", "-c", HONEST],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["tier"] == Tier.LANDLOCK
    assert set(found["succeeded"]) <= WITHOUT_VIEW
    assert (found["code"], found["output"]) == (0, "3\n")


def test_compilers_of_root_work_below_a_private_folder_without_a_view(scratch: Path) -> None:
    if not landlock.abi():
        pytest.skip("this kernel has no Landlock")
    own = scratch / "private" / "own"
    own.mkdir(parents=True)
    own.parent.chmod(0o700)
    command = [*_interpreter("root"), "-I", str(HERE / "as_user.py"), "no view", str(own)]
    done = subprocess.run(
        [*command, "bash", "-c", HONEST],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        env={**os.environ, "TMPDIR": str(own.parent)},
    )
    found = json.loads(done.stdout)
    assert (found["code"], found["output"]) == (0, "3\n")
    assert set(found["succeeded"]) <= WITHOUT_VIEW


def test_view_allows_modes_and_times_of_own_files(user: str, scratch: Path) -> None:
    if user != "root" and os.geteuid() == 0:
        os.chown(scratch, NOBODY, NOBODY)
    command = [*_interpreter(user), "-I", str(HERE / "as_user.py"), "view", str(scratch)]
    own = "touch -d @1000 a; chmod 755 a; stat -c '%a %Y' a; ls -d /home/* /root/* 2>&1 | wc -l"
    done = subprocess.run(
        [*command, "bash", "-c", own],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
        **_become(user),
    )
    found = json.loads(done.stdout)
    if "names outside visible" in found["stamp"]:
        pytest.skip("this machine has no mount namespaces")
    assert found["output"] == "755 1000\n2\n"
