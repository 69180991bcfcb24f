from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

import pytest

from cuagent.agent import TOOLS, Run
from cuagent.agent.tools.tool import ToolResult
from cuagent.events import Event, ToolOutput

Call = Callable[..., ToolResult]


# bash


def test_bash_keeps_folder_and_exported_variables(call: Call) -> None:
    call("bash", command="mkdir deep && cd deep && export WHO=me")
    assert call("bash", command='echo "$(basename $PWD) $WHO"').text == "deep me"


def test_bash_reports_the_exit_code(call: Call) -> None:
    result = call("bash", command="echo out; echo err >&2; exit 3")
    assert result.text == "out\nerr\n[exit code 3]"
    assert result.is_error
    assert result.data["exit"] == 3
    assert call("bash", command="true").text == "(no output)"


def test_bash_gives_no_input(call: Call) -> None:
    start = time.monotonic()
    assert call("bash", command="cat; read x || echo none").text == "none"
    assert time.monotonic() - start < 60  # usually below one second


def test_bash_keeps_output_at_the_time_limit(call: Call) -> None:
    for limit in (1, 10, 60):  # a busy machine may take longer than a second to start the shell
        result = call("bash", command="echo before; sleep 300 & sleep 300", timeout=limit)
        assert result.data == {"exit": None, "seconds": result.data["seconds"], "timed_out": True}
        assert limit <= result.data["seconds"] < limit + 60
        if result.text.startswith("before\n"):
            break
    assert result.text.startswith(f"before\n[killed after {limit} s")


def test_bash_leaves_nothing_running(call: Call, run: Run) -> None:
    mark = f"sleep 98765.{os.getpid()}"
    result = call("bash", command=f"{mark} & echo started")
    assert result.text == "started"
    running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert mark not in running.stdout


def test_bash_shows_both_ends_of_huge_output_and_keeps_the_file(call: Call, run: Run) -> None:
    result = call("bash", command="echo first; yes | head -c 100000000; echo last")
    assert len(result.text) < 14_000
    assert result.text.startswith("first\ny\ny")
    assert result.text.endswith("last")
    assert "characters omitted; the first 64 MiB are in .outputs/bash-1.txt" in result.text
    small = call("bash", command="yes | head -c 100000")
    assert "characters omitted; the whole output is in .outputs/bash-2.txt" in small.text
    assert call("bash", command="wc -c < .outputs/bash-1.txt").text == str(64 << 20)


def test_bash_streams_its_output(call: Call, events: list[Event]) -> None:
    call("bash", command="echo one; sleep 0.3; echo two")
    assert "".join(e.text for e in events if isinstance(e, ToolOutput)) == "one\ntwo\n"


def test_last_output_of_a_command_that_ends_between_two_checks_is_kept(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command was silent when the pipe was checked, and has ended when the process is."""
    poll = subprocess.Popen.poll

    def poll_after_the_end(process: subprocess.Popen[bytes]) -> int | None:
        process.wait()
        return poll(process)

    monkeypatch.setattr(subprocess.Popen, "poll", poll_after_the_end)
    assert call("bash", command="sleep 0.5; echo late").text == "late"


def test_bash_strips_colours_and_progress_bars(call: Call) -> None:
    command = r"printf '\033[31mred\033[0m\n10%%\r50%%\r100%%\n\000end\xff'"
    assert call("bash", command=command).text == "red\n100%\n\ufffdend\ufffd"


def test_bash_sees_no_secrets(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "planted-secret-1")
    monkeypatch.setenv("SOME_TOKEN", "planted-secret-2")
    text = call("bash", command="env; cat /proc/self/environ /proc/$PPID/environ").text
    assert "planted" not in text


def test_git_in_bash_does_not_find_the_users_repository(
    call: Call, tmp_path: os.PathLike[str]
) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    assert "not a git repository" in call("bash", command="git status").text


def test_bash_syntax_errors_keep_the_session(call: Call) -> None:
    call("bash", command="export A=1")
    assert "syntax error" in call("bash", command="if then").text
    assert call("bash", command="echo $A").text == "1"


# files


def test_file_is_written_read_and_edited(call: Call, run: Run) -> None:
    call("write", path="kernels/a.cpp", text="one\ntwo\nthree\n")
    assert call("read", path="kernels/a.cpp", first=2, lines=1).text == (
        "    2  two\n... lines 3 to 3 follow; continue with first=3"
    )
    result = call("edit", path="kernels/a.cpp", old="two", new="2")
    assert "    2  2" in result.text
    assert (run.work / "kernels/a.cpp").read_text() == "one\n2\nthree\n"


@pytest.mark.parametrize("path", ["../escape", "/etc/passwd", "a/../../escape", "link/escape"])
@pytest.mark.parametrize("tool", ["read", "write", "edit"])
def test_paths_outside_the_work_folder_are_refused(
    call: Call, run: Run, tool: str, path: str
) -> None:
    (run.work / "link").symlink_to("/tmp")
    more = {"read": {}, "write": {"text": ""}, "edit": {"old": "a", "new": "b"}}[tool]
    result = call(tool, path=path, **more)
    assert result.is_error
    assert "outside of your work folder" in result.text


def test_write_returns_a_diff_for_the_views(call: Call) -> None:
    assert "diff" not in call("write", path="a.py", text="one\ntwo\nthree\nfour\n").data
    result = call("write", path="a.py", text="one\ntwo\n3\nfour\n")
    assert result.data["diff"] == "@@ -2,3 +2,3 @@\n two\n-three\n+3\n four"


def test_unread_file_is_not_overwritten(call: Call, run: Run) -> None:
    (run.work / "a.py").write_text("precious\n")
    assert "read it before you change it" in call("write", path="a.py", text="").text
    assert "read it before you change it" in call("edit", path="a.py", old="p", new="q").text
    call("read", path="a.py")
    call("bash", command="echo more >> a.py")
    assert "changed since you read it" in call("write", path="a.py", text="").text
    assert (run.work / "a.py").read_text() == "precious\nmore\n"
    call("read", path="a.py")
    assert not call("write", path="a.py", text="new\n").is_error


def test_reference_cannot_be_changed(call: Call) -> None:
    assert "must not change" in call("write", path="reference.py", text="").text
    assert "must not change" in call("edit", path="reference.py", old="* 2", new="* 3").text


def test_failed_edit_shows_the_most_similar_region(call: Call) -> None:
    body = "".join(f"line {n}\n" for n in range(50)) + "    total += in[i] * w[i];\n"
    call("write", path="k.cpp", text=body)
    result = call("edit", path="k.cpp", old="total += in[i] * w[j];", new="x")
    assert "does not occur" in result.text
    assert "   51      total += in[i] * w[i];" in result.text
    result = call("edit", path="k.cpp", old="total+=in[i]*w[i];", new="x")
    assert "it differs only in white space" in result.text


def test_ambiguous_edit_names_the_lines(call: Call, run: Run) -> None:
    call("write", path="k.cpp", text="a\nb\na\n")
    assert "occurs 2 times (lines 1, 3)" in call("edit", path="k.cpp", old="a", new="c").text
    assert not call("edit", path="k.cpp", old="a", new="c", all=True).is_error
    assert (run.work / "k.cpp").read_text() == "c\nb\nc\n"


def test_writes_follow_no_links_of_commands(call: Call, run: Run) -> None:
    victim = run.folder.path / "victim"
    victim.write_text("safe")
    (run.work / ".a.py.partial").symlink_to(victim)
    (run.work / ".outputs").symlink_to(run.folder.path)
    call("write", path="a.py", text="evil")
    call("bash", command="yes | head -c 100000")
    assert victim.read_text() == "safe"
    assert not list(run.folder.path.glob("bash-*"))


@pytest.mark.timeout(120)
def test_pipe_is_refused_as_a_file(call: Call, run: Run) -> None:
    os.mkfifo(run.work / "pipe")
    assert "not a regular file" in call("read", path="pipe").text


def test_glob_and_grep_find_files(call: Call) -> None:
    call("write", path="kernels/a.cu", text="int x;\nfloat total;\n")
    assert call("glob", pattern="kernels/*").text == "kernels/a.cu  20 bytes"
    assert call("grep", pattern=r"fl\w+ total").text == "kernels/a.cu:2: float total;"
    assert call("grep", pattern="nowhere").text == "no line matches in 2 files"
    assert "not a regular expression" in call("grep", pattern="(").text
    assert "not a pattern" in call("glob", pattern="/etc/*").text
    assert call("glob", pattern="../../*").data.get("count", 0) == 0


def test_endless_regular_expression_times_out(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuagent.agent.tools.grep.SEARCH_SECONDS", 0.5)
    monkeypatch.setattr("shutil.which", lambda name: None)
    call("write", path="a.txt", text="a" * 60 + "b\n")
    assert "use a simpler expression" in call("grep", pattern="(a+)+$").text


def test_search_for_the_similar_region_is_bounded_in_time(
    call: Call,
) -> None:
    call("write", path="k.cpp", text="    total += in[i] * w[i] + in[i + 1] * w[i + 1];\n" * 4000)
    start = time.monotonic()
    wanted = "    total += on[i] * w[j] + in[i + 1] * w[j + 1];\n" * 30
    assert "does not occur" in call("edit", path="k.cpp", old=wanted, new="x").text
    assert time.monotonic() - start < 60  # usually below 3 s


def test_skill_files_can_be_read(call: Call) -> None:
    assert not call("read", path="skills/SKILL.md").is_error
    assert call("read", path="skills/../../pyproject.toml").is_error


# mistakes of the model


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("read", '{"path": ', "not valid JSON"),
        ("read", "[]", "must be a JSON object; arguments: path"),
        ("read", '"x"', "must be a JSON object"),
        ("read", "{}", "argument 'path' is missing"),
        ("read", '{"pth": "x"}', "did you mean path?"),
        ("read", '{"path": 3}', "must be of type string, not int"),
        ("read", '{"path": "x", "first": 0}', "must be at least 1"),
        ("read", '{"path": "x", "first": true}', "must be of type integer, not bool"),
        ("read", '{"path": "a\\u0000b"}', "NUL"),
        ("bash", '{"command": "a\\u0000b"}', "NUL"),
        ("profile", '{"what": "all"}', "must be one of candidate, reference"),
        ("verify", "", "no model_new.py"),
        ("read", "[" * 100_000, "not valid JSON"),
        ("bassh", "{}", "did you mean bash?"),
        ("", "{}", "no tool ''"),
    ],
)
def test_wrong_call_gets_an_error_with_a_remedy(
    call: Call, name: str, raw: str, message: str
) -> None:
    result = call(name, raw)
    assert result.is_error
    assert message in result.text
    assert len(result.text) < 400


def test_bug_in_a_tool_is_a_result_and_is_logged(call: Call, run: Run) -> None:
    result = call("profile", what="reference")  # NoJudge has no such method
    assert "failed internally" in result.text
    assert result.data["internal"] == "AttributeError"
    assert "AttributeError" in run.folder.log.read_text()


def test_every_tool_has_a_description_and_a_strict_schema() -> None:
    for tool in TOOLS:
        assert 40 < len(tool.spec.description) < 900
        assert tool.spec.schema["additionalProperties"] is False
        assert set(tool.spec.schema["required"]) <= set(tool.spec.schema["properties"])


def test_search_without_files_reports_it(call: Call) -> None:
    assert call("grep", pattern="x", files="kernels/*.cu").text == "no file matches 'kernels/*.cu'"
    for name, more in (("grep", {"pattern": "x", "files": "skills/**/*.md"}), ("glob", {})):
        text = call(name, **({"pattern": "skills/*"} | more)).text
        assert "the skill's files are not in your work folder; open them with read" in text
