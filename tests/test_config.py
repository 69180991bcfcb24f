"""Test settings: precedence, origins and validation, and what a project's file may set."""

from __future__ import annotations

from pathlib import Path

import pytest

from cuagent.config import (
    ALLOWED,
    BUDGETS,
    CONFIRMED,
    KEYS,
    PERSONAL,
    TABLES,
    ConfigError,
    Proposal,
    resolve,
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / ".config" / "cuagent"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text('model = "user"\ndevice = "cpu"\nmax_cost = 1\n')
    return tmp_path / "home"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / ".cuagent.toml").write_text('model = "project"\nmax_time = "30m"\nmax_steps = 7\n')
    return folder


def test_precedence_and_origins_of_the_layers(home: Path, project: Path) -> None:
    environ = {"HOME": str(home), "CUAGENT_MAX_STEPS": "8"}
    settings = resolve({"precision": "tf32", "model": None}, environ=environ, cwd=project / "src")
    assert settings.precision == "tf32"
    assert settings.origins["precision"] == "--precision"
    assert settings.max_steps == 8
    assert settings.origins["max_steps"] == "CUAGENT_MAX_STEPS"
    assert settings.model == "user", "a project's model needs the user's consent"
    assert settings.max_time == 1800.0
    assert settings.origins["max_time"] == str(project / ".cuagent.toml")
    assert settings.max_cost == 1.0
    assert settings.origins["max_cost"].endswith("config.toml")
    assert settings.isolation == "auto"
    assert settings.origins["isolation"] == "default"


def test_pyproject_is_a_project_file_if_it_has_the_cuagent_table(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.cuagent]\ndevice = "cpu"\n')
    assert resolve(environ={}, cwd=tmp_path).device == "cpu"
    (tmp_path / "pyproject.toml").write_text('[tool.other]\ndevice = "cpu"\n')
    assert resolve(environ={}, cwd=tmp_path).device == "auto"


def test_file_above_the_repository_is_not_read(project: Path) -> None:
    inner = project / "inner"
    (inner / ".git").mkdir(parents=True)
    assert resolve(environ={}, cwd=inner).model == "auto"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('modle = "x"', "no setting 'modle'; did you mean model?"),
        ("colour = 1", "known are model, device"),
        ("max_steps = 1.5", "a whole number above 0"),
        ("model = 3", "it takes a text"),
        ("max_steps = true", "a whole number above 0"),
        ('max_cost = "free"', "max_cost is 'free'; it takes a number above 0"),
        ("max_time = -1", "max_time is -1"),
        ('max_time = "3x"', "it takes a time above 0: 90s, 30m, 1.5h"),
        ("model = ", "not TOML"),
        ('device = "gpu"', "it takes auto or cpu or cuda"),
    ],
)
def test_invalid_setting_is_refused_and_its_file_named(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / ".cuagent.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        resolve(environ={}, cwd=tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path / ".cuagent.toml") in str(caught.value)


def test_each_setting_is_classified_once() -> None:
    classes = [*ALLOWED, *PERSONAL, *CONFIRMED, *BUDGETS]
    assert sorted(classes) == sorted([*KEYS, *TABLES])


@pytest.mark.parametrize("name", [".cuagent.toml", "pyproject.toml"])
def test_linked_project_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "repository").mkdir()
    (tmp_path / "other.toml").write_text('[tool.cuagent]\ndevice = "cpu"\n')
    (tmp_path / "repository" / name).symlink_to(tmp_path / "other.toml")
    with pytest.raises(ConfigError, match=f"{name}: is a link"):
        resolve(environ={}, cwd=tmp_path / "repository")


def test_project_file_without_end_is_refused_and_not_read(tmp_path: Path) -> None:
    (tmp_path / ".cuagent.toml").write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(ConfigError, match="too large"):
        resolve(environ={}, cwd=tmp_path)


@pytest.mark.parametrize("key", ["isolation", "approval", "notify_command", "model_timeout"])
def test_project_cannot_set_personal_keys(home: Path, project: Path, key: str) -> None:
    value: object = {
        "isolation": "none", "approval": "yolo", "notify_command": "date", "model_timeout": 9.0
    }[key]  # fmt: skip
    (home / ".config" / "cuagent" / "config.toml").write_text(f"{key} = {value!r}\n")
    environ = {"HOME": str(home)}
    assert getattr(resolve(environ=environ, cwd=project), key) == value
    (project / ".cuagent.toml").write_text(f"{key} = {value!r}\n")
    with pytest.raises(ConfigError, match=f"a project must not set {key}"):
        resolve(environ=environ, cwd=project)


@pytest.mark.parametrize(
    ("text", "user_file", "expected"),
    [
        ("max_cost = 500", "max_cost = 1", 1.0),
        ("max_cost = 0.5", "max_cost = 1", 0.5),
        ("max_cost = 6", "", 5.0),
        ("max_steps = 101", "", 100),
        ('max_time = "2h"', "", 3600.0),
        ('max_device_time = "30m"', 'max_device_time = "10m"', 600.0),
        ('max_device_time = "5m"', 'max_device_time = "10m"', 300.0),
    ],
)
def test_project_can_only_lower_budgets(
    home: Path, project: Path, text: str, user_file: str, expected: float
) -> None:
    (home / ".config" / "cuagent" / "config.toml").write_text(user_file)
    (project / ".cuagent.toml").write_text(text)
    key = text.split()[0]
    settings = resolve(environ={"HOME": str(home)}, cwd=project)
    assert getattr(settings, key) == expected
    lowered = settings.origins[key] == str(project / ".cuagent.toml")
    assert lowered != (key in settings.ignored)
    if not lowered:
        assert "a project may only lower it" in settings.ignored[key]
    more = resolve({key: "9999"}, environ={"HOME": str(home)}, cwd=project)
    assert getattr(more, key) == 9999
    assert not more.ignored


@pytest.mark.parametrize("name", [".cuagent.toml", "pyproject.toml"])
def test_model_and_precision_of_a_project_need_consent(tmp_path: Path, name: str) -> None:
    table = "[tool.cuagent]\n" * (name == "pyproject.toml")
    (tmp_path / name).write_text(f'{table}precision = "bf16"\nmodel = "openai:dear"\n')
    asked: list[Proposal] = []

    def agree(proposal: Proposal) -> bool:
        asked.append(proposal)
        return True

    settings = resolve(environ={}, cwd=tmp_path)
    assert (settings.precision, settings.model) == ("match", "auto")
    assert settings.ignored.keys() == {"precision", "model"}
    settings = resolve({"precision": None}, environ={}, cwd=tmp_path, accept=agree)
    assert (settings.precision, settings.model) == ("bf16", "auto"), (
        "only keys of the flags are proposed"
    )
    assert str(asked[0]).endswith("sets precision = 'bf16', which is for you to decide")
    both = {"precision": None, "model": None}
    assert resolve(both, environ={}, cwd=tmp_path, accept=agree).model == "openai:dear"
    flags = {"precision": "tf32", "model": "expert"}
    settings = resolve(flags, environ={}, cwd=tmp_path, accept=agree)
    assert (settings.precision, settings.model, settings.ignored) == ("tf32", "expert", {})
    assert len(asked) == 2, "a key that a flag sets is not proposed"
    (tmp_path / name).write_text(f'{table}precision = "fp16"\n')
    resolve(both, environ={}, cwd=tmp_path, accept=agree)
    assert len({proposal.digest for proposal in asked}) == 3, "the consent is for these values only"


def test_project_cannot_set_servers_and_prices(home: Path, project: Path) -> None:
    file = home / ".config" / "cuagent" / "config.toml"
    file.write_text('[endpoints.lab]\nbase_url = "http://lab:8000/v1"\n[prices.m]\ninput = 1\n')
    environ = {"HOME": str(home)}
    settings = resolve(environ=environ, cwd=project)
    assert settings.endpoints == {"lab": {"base_url": "http://lab:8000/v1"}}
    assert settings.prices == {"m": {"input": 1}}
    (project / ".cuagent.toml").write_text('[endpoints.openai]\nbase_url = "http://evil/v1"\n')
    with pytest.raises(ConfigError, match="a project must not set endpoints"):
        resolve(environ=environ, cwd=project)
    file.write_text("prices = 3\n")
    (project / ".cuagent.toml").unlink()
    with pytest.raises(ConfigError, match=r"prices is a table: write \[prices.NAME\]"):
        resolve(environ=environ, cwd=project)


def test_misspelled_variable_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"CUAGENT_MAX_STEP: .* did you mean CUAGENT_MAX_STEPS"):
        resolve(environ={"CUAGENT_MAX_STEP": "3"}, cwd=tmp_path)
    resolve(environ={"CUAGENT_CACHE": "/x"}, cwd=tmp_path)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("30m", 1800), ("1.5h", 5400)]
)
def test_time_may_have_a_unit(tmp_path: Path, text: str, seconds: float) -> None:
    assert resolve({"max_time": text}, environ={}, cwd=tmp_path).max_time == seconds


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (".cuagent.toml", "a = " + "[" * 100_000, "not TOML"),
        ("pyproject.toml", 'tool = 5\n[x]\ny = "[tool.cuagent]"', "tool is no table"),
        ("pyproject.toml", '[tool]\ncuagent = 3\ny = "[tool.cuagent]"', "cuagent is no table"),
    ],
)
def test_malformed_project_file_is_named(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        resolve(environ={"HOME": str(tmp_path / "home")}, cwd=tmp_path)
