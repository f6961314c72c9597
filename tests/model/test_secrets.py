from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lakewright.errors import ConfigurationError
from lakewright.model.secrets import Secret, mask


def test_a_secret_is_looked_up_when_it_is_used_and_masked_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = Secret("secret://env/BLOG_PW")
    monkeypatch.setenv("BLOG_PW", "Ty63-first")
    assert secret.reveal() == "Ty63-first"
    monkeypatch.setenv("BLOG_PW", "Ty63-second")
    assert secret.reveal() == "Ty63-second"
    assert mask("Ty63-first, Ty63-second") == "***, ***"


def test_all_that_is_written_down_is_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOG_PW", "Ty63-kept")
    secret = Secret("secret://env/BLOG_PW")
    secret.reveal()
    assert (str(secret), repr(secret)) == ("secret://env/BLOG_PW", "Secret('secret://env/BLOG_PW')")
    assert b"Ty63" not in pickle.dumps(secret)
    assert pickle.loads(pickle.dumps(secret)).reveal() == "Ty63-kept"


def test_a_file_is_found_from_the_project_or_by_its_full_path_and_its_last_newline_is_not_part_of_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "keys").mkdir()
    file = tmp_path / "keys" / "db"
    file.write_bytes(b" two\nlines \r\n")
    for reference in ("secret://file/keys/db", f"secret://file/{file}"):
        assert Secret(reference, tmp_path).reveal() == " two\nlines "


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("hunter2", ["only a reference", "secret://env/VARIABLE"]),
        ("secret://vault/db", ["no kind of secret 'vault'"]),
        ("secret://fil/db", ["Did you mean 'file'?"]),
        ("secret://env/", ["name of the variable is missing"]),
        ("secret://file", ["name of the file is missing"]),
        ("secret://env/my password", ["no name of an environment variable"]),
    ],
)
def test_a_wrong_reference_is_refused_at_once_with_the_cure(reference: str, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Secret(reference)
    assert all(word in str(caught.value) for word in words)
    assert "hunter2" not in str(caught.value)


def test_what_is_missing_is_named_with_the_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    with pytest.raises(ConfigurationError, match=r"variable NOT_THERE is not set\. .*export NOT_THERE="):
        Secret("secret://env/NOT_THERE").reveal()
    monkeypatch.setenv("NOT_THERE", "")
    with pytest.raises(ConfigurationError, match="is empty"):
        Secret("secret://env/NOT_THERE").reveal()
    with pytest.raises(ConfigurationError, match=f"there is no file {tmp_path}/none"):
        Secret("secret://file/none", tmp_path).reveal()
    (tmp_path / "raw").write_bytes(b"pw\xff\xfe")
    with pytest.raises(ConfigurationError, match="not UTF-8") as caught:
        Secret("secret://file/raw", tmp_path).reveal()
    assert caught.value.__cause__ is None
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        Secret(f"secret://file/{tmp_path}").reveal()
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigurationError, match="is empty"):
        Secret("secret://file/empty", tmp_path).reveal()
