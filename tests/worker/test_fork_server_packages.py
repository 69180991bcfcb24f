"""The fork server imports a task's packages once, unless that is unsafe before a fork."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from cuagent.task import load_task
from cuagent.verify import Referee
from cuagent.worker import ForkServer
from cuagent.worker.channel import receive_message
from cuagent.worker.preload import cuda_not_started, forget_folders

ROOT = Path(__file__).parents[2]
THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,)).start()\n"
LEAST_KB = 20_000
"""Memory that torch.compile's modules take at least."""
LOOKS = "import torch\ntorch.cuda._is_in_bad_fork = lambda: True\n"
"""A package that looks for a GPU, which the real function reports in children."""
POOL = """
import ctypes, pathlib, subprocess
source = pathlib.Path(__file__).with_name("pool.c")
source.write_text('''
#include <pthread.h>
#include <semaphore.h>
static pthread_t thread; static sem_t end; static int runs;
static void *wait_for_end(void *_) { sem_wait(&end); return 0; }
static void stop(void) { if (runs) { sem_post(&end); pthread_join(thread, 0); runs = 0; } }
void start(void) {
  sem_init(&end, 0, 0); pthread_create(&thread, 0, wait_for_end, 0); runs = 1;
  pthread_atfork(stop, 0, 0);
}
''')
library = str(source.with_suffix(".so"))
subprocess.run(["cc", "-shared", "-fPIC", "-pthread", "-o", library, str(source)], check=True)
ctypes.CDLL(library).start()
"""
"""A package with a pool of threads that it ends before a fork, as OpenBLAS does."""
BROKEN = "raise ValueError('broken')\n"


def test_packages_are_imported_before_the_first_fork() -> None:
    with ForkServer(packages=("pydantic_core:ValidationError", "is_missing")) as server:
        assert server.threads >= 1  # waits until it is ready
        assert "pydantic_core" in Path(f"/proc/{server.pid}/maps").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "kept"),
    [("", True), (BROKEN, True), (POOL, True), (THREAD, False), (LOOKS, False)],
)
def test_package_that_is_unsafe_before_a_fork_is_left_out(
    text: str, kept: bool, tmp_path: Path
) -> None:
    (tmp_path / "a_package.py").write_text(text)
    (tmp_path / "folder").mkdir()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = (
        f"import sys, socket; sys.path += [{str(ROOT)!r}, {str(tmp_path)!r}];"
        "from cuagent.worker.fork_server_main import main;"
        f"main(socket.socket(fileno={theirs.fileno()}), {str(tmp_path / 'folder')!r}, (), "
        f"{('a_package',)!r})"
    )
    process = subprocess.Popen(
        [sys.executable, "-I", "-B", "-c", program], pass_fds=[theirs.fileno()]
    )
    theirs.close()
    with ours:
        ours.settimeout(120)
        assert receive_message(ours) is not None
        command = Path(f"/proc/{process.pid}/cmdline").read_text()
        assert ("a_package" in command) is kept
    assert process.wait(60) == 0


@pytest.mark.slow
def test_compiler_is_imported_while_no_request_waits(tmp_path: Path) -> None:
    with ForkServer(compiler=True) as server:
        maps = Path(f"/proc/{server.pid}/smaps_rollup")
        child = server.fork("no_such_program", tmp_path, {})
        before = memory_kb(maps)
        deadline = time.monotonic() + 120
        while memory_kb(maps) < before + LEAST_KB and time.monotonic() < deadline:
            time.sleep(0.2)
        assert memory_kb(maps) >= before + LEAST_KB
        server.end(child)


def test_nothing_starts_cuda_before_the_fork() -> None:
    real = torch.cuda._lazy_init
    with cuda_not_started():
        assert torch.cuda.is_available()
        assert torch.cuda.device_count() == 1
        with pytest.raises(RuntimeError, match="after the fork"):
            torch.cuda._lazy_init()
    assert torch.cuda._lazy_init is real


def test_inductor_notes_the_childs_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted = SimpleNamespace(_HEADER_DIR="/theirs", _HEADER_LOCK_DIR="/theirs/locks")
    monkeypatch.setitem(sys.modules, "torch._inductor.codecache", noted)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    forget_folders()
    assert Path(noted._HEADER_DIR).is_relative_to(tmp_path)
    assert Path(noted._HEADER_LOCK_DIR).parent == Path(noted._HEADER_DIR)


def memory_kb(file: Path) -> int:
    lines = file.read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Rss"))


@pytest.mark.gpu
def test_children_of_a_task_on_a_gpu_can_use_it(tmp_path: Path) -> None:
    task = load_task(written(tmp_path), device="cuda")
    with Referee(task) as referee:
        time.sleep(15)  # in which the fork server imports torch.compile
        for arm in ("eager", "compile"):
            session = referee.processes.reference(arm)
            assert not session.closed
            session.close()


def written(folder: Path) -> Path:
    path = folder / "task.py"
    path.write_text(
        "import torch\n"
        "class Model(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x * 2\n"
        "def get_inputs():\n"
        "    return [torch.randn(64)]\n"
        "def get_init_inputs():\n"
        "    return []\n"
    )
    return path
