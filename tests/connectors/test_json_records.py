"""What the parser of JSON records asks of a text before it trusts it."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from lakewright.connectors.json_records import decoded_utf8, is_flat, utf8_texts

# Parts of UTF-8 and of what is none: overlong, surrogates, cut and beyond Unicode; U+FFFD of the text's own.
PIECES = (
    b"", b"a", b"}", b"{", b"\\", b'"', b"\n", b"\x00", b"\x7f", b"\x80", b"\xbf", b"\xc0\x80", b"\xc3", b"\xc3\xa9",
    b"\xe0\x80\xaf", b"\xe2\x82", b"\xe2\x82\xac", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xef\xbf\xbd", b"\xef\xbf",
    b"\xf0\x9f\x98\x80", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xf5", b"\xfe", b"\xff", b"a" * 40,
)  # fmt: skip


def is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_bytes_are_told_as_utf_8_and_as_flat_just_where_they_are(spark, seed):
    dice = random.Random(seed)
    values = [b"".join(dice.choices(PIECES, k=dice.randint(0, 5))) + dice.choice((b"", b"}")) for _ in range(400)]
    values += PIECES
    frame = spark.createDataFrame([(bytearray(value),) for value in values], "value binary")
    found = frame.selectExpr("value", *utf8_texts("value")).collect()
    assert len(found) == len(values)
    for value, text, flawed, flat in found:
        right = is_utf8(bytes(value))
        plain = bytes(value).decode().removeprefix("\ufeff") if right else bytes(value).decode("latin-1")
        assert (text, flawed) == (plain, not right)
        assert flat == (right and value.endswith(b"}") and value.count(b"}") == 1)


def test_nothing_is_no_text_and_neither_right_nor_wrong(spark):
    text, flawed = decoded_utf8("value")
    frame = spark.createDataFrame([(None,)], "value binary")
    assert frame.selectExpr(text, flawed, is_flat("CAST(value AS STRING)")).collect() == [(None, None, None)]
    assert frame.selectExpr(*utf8_texts("coalesce(value, X'')")).collect() == [("", False, False)]
