"""Defaults of a policy, its JSON form, and the files and variables that it grants."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cuagent.sandbox import Policy
from cuagent.sandbox.policy import (
    GPU_FILES,
    NETWORK,
    SYSTEM,
    SYSTEM_GPU,
    TASKS,
    environment,
    gpu_devices,
    policy_from_json,
    readable,
)


def test_limits_have_their_documented_values() -> None:
    policy = Policy()
    assert policy.open_files == 256
    assert GPU_FILES == 1024
    assert policy.processes == TASKS == 64 + 4 * (os.cpu_count() or 1)
    assert policy.file_bytes == 1024**3
    assert policy.memory_bytes is None
    assert policy.fds == (0, 1, 2)


def test_default_policy_grants_only_the_interpreter() -> None:
    policy = Policy()
    assert policy.read == policy.write == policy.environment == ()
    assert (policy.gpu, policy.network, policy.children) == (False, False, False)
    assert (policy.interpreter, policy.own_uid) == (True, True)


def test_json_form_is_read_back() -> None:
    policy = Policy(
        read=(Path("/a"), Path("/b c")),
        write=(Path("/w"),),
        gpu=True,
        network=True,
        interpreter=False,
        children=True,
        processes=7,
        open_files=8,
        file_bytes=9,
        memory_bytes=10,
        own_uid=False,
        fds=(0, 5),
        environment=(("A", "1"), ("B", "2")),
    )
    for written in (policy, Policy()):
        back = policy_from_json(written.to_json())
        assert back == written
        assert all(isinstance(path, Path) for path in (*back.read, *back.write))
    assert hash(policy_from_json(policy.to_json())) == hash(policy)


def existing(names: tuple[str, ...]) -> set[Path]:
    return {Path(name) for name in names if Path(name).exists()}


@pytest.fixture
def no_cuda_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_HOME", raising=False)


@pytest.mark.usefixtures("no_cuda_home")
def test_minimal_policy_may_read_only_the_system() -> None:
    found = readable(Policy(interpreter=False))
    assert found == sorted(existing(SYSTEM))


@pytest.mark.usefixtures("no_cuda_home")
@pytest.mark.parametrize(("flag", "names"), [("gpu", SYSTEM_GPU), ("network", NETWORK)])
def test_flag_adds_the_files_of_its_service(flag: str, names: tuple[str, ...]) -> None:
    found = readable(Policy(interpreter=False, **{flag: True}))
    assert set(found) == existing(SYSTEM) | existing(names)


@pytest.mark.usefixtures("no_cuda_home")
def test_interpreter_adds_prefixes_and_site_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = [tmp_path / "site-packages", tmp_path / "dist-packages"]
    project = tmp_path / "project"
    for folder in (*packages, project):
        folder.mkdir()
    monkeypatch.setattr(sys, "path", [str(project), *map(str, packages)])
    found = set(readable(Policy()))
    prefixes = existing((sys.prefix, sys.base_prefix, sys.exec_prefix))
    assert found == existing(SYSTEM) | prefixes | set(packages)


def test_cuda_home_and_named_paths_are_readable_if_they_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    policy = Policy(read=(tmp_path / "missing", Path("/"), Path("/dev/null")), interpreter=False)
    assert set(readable(policy)) == existing(SYSTEM) | {tmp_path, Path("/dev/null")}


def test_gpu_devices_are_nodes_of_the_driver_and_no_folders(tmp_path: Path) -> None:
    names = ["dxg", "nvidia-caps/nvidia-cap1", "nvidia0", "nvidiactl"]
    (tmp_path / "nvidia-caps").mkdir()
    for name in (*names, "null"):
        (tmp_path / name).touch()
    assert gpu_devices(tmp_path) == [tmp_path / name for name in names]


def test_gpu_devices_are_the_nodes_of_the_driver() -> None:
    drivers = [path for path in Path("/dev").iterdir() if path.name.startswith("nvidia")]
    expected = {path for path in drivers if not path.is_dir()}
    for folder in Path("/dev/nvidia-caps"), Path("/dev/dxg"):
        expected |= (
            set(folder.iterdir()) if folder.is_dir() else {folder} & existing((str(folder),))
        )
    assert gpu_devices() == sorted(expected)


def test_environment_passes_no_other_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.setenv("API_KEY", "secret")
    assert environment(Policy()) == {
        "PATH": "/usr/bin",
        "USER": "cuagent",
        "LOGNAME": "cuagent",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def test_first_writable_folder_is_home_and_named_variables_win(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LANG", "C")
    policy = Policy(write=(Path("/w"), Path("/v")), environment=(("LANG", "x"), ("TMPDIR", "/t")))
    found = environment(policy)
    assert found["HOME"] == "/w"
    assert found["TORCHINDUCTOR_CACHE_DIR"] == "/w/inductor"
    assert (found["TRITON_HOME"], found["TRITON_CACHE_DIR"]) == ("/w", "/w/triton")
    assert (found["LANG"], found["TMPDIR"]) == ("x", "/t")
