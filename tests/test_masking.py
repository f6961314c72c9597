from __future__ import annotations

import io
import json
import sys
import traceback
from types import SimpleNamespace
from urllib.parse import quote

import pytest

from lakewright.errors import StepFailed, first_words, name_and_words
from lakewright.masking import MaskedStream, mask, masked_copy, remember, watch

NASTY = 'Mk3vTq8z/{w} "ö\\'


@pytest.mark.parametrize("written", [str, quote, lambda s: quote(s, safe=""), json.dumps, repr])
def test_a_value_is_masked_in_every_form_in_which_it_may_be_written(written) -> None:
    remember(NASTY)
    assert "Mk3vTq8z" not in mask(f"cannot log in with {written(NASTY)}, sorry")


def test_the_password_of_an_address_and_the_lines_of_a_key_are_masked_alone() -> None:
    remember("postgresql://blog:Xq91%2Fzzk@db/blog")
    assert mask("password Xq91/zzk or Xq91%2Fzzk of blog") == "password *** or *** of blog"
    remember("-----BEGIN KEY-----\nMIIBx91kd8\nab\n-----END KEY-----\n")
    assert mask("line 2 is MIIBx91kd8, line 3 is ab") == "line 2 is ***, line 3 is ab"


def test_a_value_whose_beginning_is_another_one_is_masked_as_a_whole() -> None:
    remember("jump91over")
    remember("jump91overTheMoon")
    assert mask("with jump91overTheMoon and jump91over") == "with *** and ***"


def test_the_beginning_of_a_value_at_the_end_of_a_cut_message_is_masked() -> None:
    remember("Cut7Cut7Value")
    message = f"{'a long story ' * 8}ends with Cut7Cut7Value, and goes on"
    for end in range(message.index("Cut7") + 4, len(message)):
        for cut in (message[:end], f"{message[:end]}…"):
            assert "Cut7" not in mask(cut)
    assert mask("Cut7") == "Cut7"  # a name of its own, not a text that was cut


def test_the_first_words_of_an_error_are_masked_before_they_are_cut_and_never_fail() -> None:
    remember("Cut8Cut8Value")
    story = f"{'a long story ' * 8}ends with Cut8Cut8Value, and goes on"
    for most in range(1, len(story)):
        assert "Cut8" not in f"{first_words(ValueError(story), most=most)} No later step was run."
    assert first_words(ConnectionError()) == name_and_words(ConnectionError()) == "ConnectionError"
    assert first_words("\n\n") == ""
    of_java = Exception("An error occurred while calling o123.save.\n: org.apache.SparkException: no\n\tat Save.java")
    assert first_words(of_java) == "org.apache.SparkException: no"
    assert name_and_words(ValueError("\n two lines \nor more")) == "ValueError: two lines"


def test_a_value_with_a_line_break_at_its_end_is_masked_without_it_too() -> None:
    remember("Nl71-token\n")
    assert mask("Bearer Nl71-token, refused") == "Bearer ***, refused"


def test_the_python_of_a_connect_server_masks_what_a_micro_batch_raises_or_prints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = SimpleNamespace(TaskContext=SimpleNamespace(get=lambda: None))  # it runs no task
    monkeypatch.setitem(sys.modules, "pyspark.taskcontext", task)
    monkeypatch.setenv("SPARK_CONNECT_LOCAL_URL", "sc://localhost:1")
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.StringIO())
    for name in ("format", "format_exception_only"):
        monkeypatch.setattr(traceback.TracebackException, name, getattr(traceback.TracebackException, name))
    remember("Fb61-in-a-batch")
    try:
        raise ValueError("cannot log in with Fb61-in-a-batch")
    except ValueError:
        told = traceback.format_exc()
    sys.stdout.write("it is Fb61-in-a-batch\n")
    assert "ValueError: cannot log in with ***" in told
    assert sys.stdout.getvalue() == "it is ***\n"


def test_what_is_short_or_unknown_stays() -> None:
    remember("abc")
    assert mask("abc and an unknown word") == "abc and an unknown word"


def test_errors_json_and_streams_mask_by_themselves() -> None:
    remember("Zz81-by-itself")
    error = StepFailed("cannot log in with Zz81-by-itself", hint="Try Zz81-by-itself.")
    assert (error.message, error.hint, error.args) == ("cannot log in with ***", "Try ***.", (error.message,))
    assert masked_copy({"a": ["Zz81-by-itself", 1, None], "b": ("x", {"c": "Zz81-by-itself"})}) == {
        "a": ["***", 1, None],
        "b": ["x", {"c": "***"}],
    }
    text = io.StringIO()
    print("it is", "Zz81-by-itself", file=MaskedStream(text))  # type: ignore[arg-type]
    assert text.getvalue() == "it is ***\n"


def test_somebody_who_writes_by_other_means_is_told_every_value() -> None:
    told: list[tuple[str, ...]] = []
    remember("early-Pq71")
    watch(told.append)
    remember("later-Pq72")
    remember("later-Pq72")
    assert "early-Pq71" in told[0]
    assert "later-Pq72" in told[1]
    assert len(told) == 2
