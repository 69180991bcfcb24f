"""Formats and environment variables that are masked, and ordinary text that is not."""

from __future__ import annotations

import json

import pytest

from cuagent.record import is_secret_name, redactor
from cuagent.record.redact import MASK


@pytest.mark.parametrize(
    "secret",
    [
        "sk-" + "a" * 16,
        "sk-ant-api03-" + "x_-" * 20,
        *(f"gh{letter}_" + "Z9" * 10 for letter in "opsur"),
        "github_pat_" + "a1_" * 7,
        "hf_" + "b" * 20,
        *(f"xox{letter}-" + "1-a" * 4 for letter in "abprs"),
        "AIza" + "c" * 35,
        "AKIA" + "Q2" * 8,
        "glpat-" + "d" * 20,
    ],
)
def test_known_format_is_masked_as_a_whole(secret: str) -> None:
    redact = redactor({})
    assert redact(f"key={secret} end") == f"key={MASK} end"
    assert redact(f'"{secret}"') == f'"{MASK}"'
    assert redact("x" + secret) == "x" + secret, "inside a longer word"


@pytest.mark.parametrize(
    "text",
    [
        "sk-" + "a" * 15,
        "ghp_" + "Z" * 19,
        "hf_" + "b" * 19,
        "xoxb-" + "1" * 9,
        "AIza" + "c" * 34,
        "AKIA" + "Q" * 15,
        "AKIA" + "Q" * 17,
        "task-1234567890abcdefghij",
        "https://example.com/a:b",
    ],
)
def test_shorter_or_longer_text_is_not_masked(text: str) -> None:
    assert redactor({})(text) == text


def test_password_of_a_url_is_masked() -> None:
    redact = redactor({})
    assert redact("git clone https://me:pw@host/x") == f"git clone https://{MASK}@host/x"
    assert redact("https://host:80/x") == "https://host:80/x"


@pytest.mark.parametrize("end", ["-----END RSA PRIVATE KEY-----", ""])
def test_private_key_is_masked_to_its_end_or_the_end_of_the_text(end: str) -> None:
    text = f"a -----BEGIN RSA PRIVATE KEY-----\nabc\ndef\n{end}"
    assert redactor({})(text) == f"a {MASK}"


@pytest.mark.parametrize(
    "name",
    [
        "API_KEY", "hf_token", "MY_SECRET", "PASSWD", "PGPASSWORD", "PASSPHRASE",
        "AWS_CREDENTIALS", "AUTH", "AUTHORIZATION_HEADER_AUTH", "COOKIE", "SLACK_WEBHOOK",
    ],
)  # fmt: skip
def test_name_of_a_secret_is_recognized(name: str) -> None:
    assert is_secret_name(name) is True
    assert redactor({name: "correct horse"})("a correct horse b") == f"a {MASK} b"


@pytest.mark.parametrize("name", ["HOME", "GIT_AUTHOR_NAME", "PATH"])
def test_ordinary_name_is_not_a_secret(name: str) -> None:
    assert is_secret_name(name) is False
    assert redactor({name: "correct horse"})("a correct horse b") == "a correct horse b"


def test_value_of_eight_characters_is_masked_and_of_seven_is_not() -> None:
    redact = redactor({"A_KEY": "12345678", "B_KEY": "abcdefg"})
    assert redact("12345678 abcdefg") == f"{MASK} abcdefg"


def test_value_that_contains_another_is_masked_as_a_whole() -> None:
    redact = redactor({"A_KEY": "password", "B_KEY": "password-and-more"})
    assert redact("password-and-more") == MASK


def test_escaped_form_of_a_value_is_masked_in_json_text() -> None:
    value = 'line "one"\nline two'
    redact = redactor({"A_KEY": value})
    assert redact(json.dumps({"command": value})) == json.dumps({"command": MASK})
    assert redact(value) == MASK


def test_special_characters_of_a_value_are_literal() -> None:
    redact = redactor({"A_KEY": "a.c*e(g)h"})
    assert redact("a.c*e(g)h abcde(g)h") == f"{MASK} abcde(g)h"


def test_strings_in_keys_lists_and_dicts_are_masked_and_other_values_kept() -> None:
    redact = redactor({"A_KEY": "12345678"})
    value = {"12345678": ["12345678", 12345678, None, True, 1.5, {"deep": "x12345678"}]}
    masked = [MASK, 12345678, None, True, 1.5, {"deep": f"x{MASK}"}]
    assert redact(value) == {MASK: masked}


def test_environment_without_secrets_masks_nothing_else() -> None:
    assert redactor({})("") == ""
    assert redactor({})("ordinary text") == "ordinary text"
