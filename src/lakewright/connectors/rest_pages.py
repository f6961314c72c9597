"""The pages of a REST source: how to ask for the next one, and the records of each, as the very text that was sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from lakewright.connectors.http_calls import Answer, Caller, HttpFailure

__all__ = ["CursorPages", "LinkedPages", "NumberedPages", "Pages", "read_pages"]

_DECODER = json.JSONDecoder()
_BLANKS = " \t\r\n"


@dataclass(frozen=True, slots=True)
class NumberedPages:
    """``?page=1``, ``?page=2``: until one holds no record (or fewer than ``size``, where a size is asked for)."""

    param: str = "page"
    first: int = 1
    size_param: str | None = None
    size: int = 100


@dataclass(frozen=True, slots=True)
class CursorPages:
    """Each page tells, at ``next`` (a path such as ``meta.next``), ``param`` of the next one; the last tells none."""

    param: str = "cursor"
    next: str = "next"


@dataclass(frozen=True, slots=True)
class LinkedPages:
    """Each page tells the address of the next one, at ``next`` or (``None``) in its ``Link`` header."""

    next: str | None = None


Pages = NumberedPages | CursorPages | LinkedPages


def read_pages(
    url: str, params: Mapping[str, str], *, items: str, pages: Pages, caller: Caller
) -> Iterator[tuple[str, list[str]]]:
    """The name of each page and its records; raises `HttpFailure`. One page at a time is held."""
    seen: set[str] = set()
    asked: str | None = _first(url, params, pages)
    number = pages.first if isinstance(pages, NumberedPages) else 1
    while asked is not None:
        if asked in seen:
            raise HttpFailure(url, f"sends the same page again and again ({pages})", passes=False)
        seen.add(asked)
        answer = caller.get(asked)
        text = _text(url, answer)
        records = _records(url, text, items)
        if records:
            yield f"page {number}", records
        number += 1
        asked = _following(url, params, pages, number, answer, text, len(records))


def _first(url: str, params: Mapping[str, str], pages: Pages) -> str:
    return _address(url, {**params, **(_numbered(pages, pages.first) if isinstance(pages, NumberedPages) else {})})


def _numbered(pages: NumberedPages, number: int) -> dict[str, str]:
    size = {} if pages.size_param is None else {pages.size_param: str(pages.size)}
    return {pages.param: str(number), **size}


def _address(url: str, params: Mapping[str, str]) -> str:
    if not params:
        return url
    return f"{url}{'&' if urlsplit(url).query else '?'}{urlencode(params)}"


def _following(
    url: str, params: Mapping[str, str], pages: Pages, number: int, answer: Answer, text: str, records: int
) -> str | None:
    if isinstance(pages, NumberedPages):
        is_last = records == 0 or (pages.size_param is not None and records < pages.size)
        return None if is_last else _address(url, {**params, **_numbered(pages, number)})
    if isinstance(pages, CursorPages):
        cursor = _at(text, pages.next)
        return None if cursor in (None, "") else _address(url, {**params, pages.param: str(cursor)})
    link = answer.next_link if pages.next is None else _at(text, pages.next)
    if not link:
        return None
    address = urljoin(url, str(link))
    if urlsplit(address)[:2] != urlsplit(url)[:2]:
        raise HttpFailure(url, f"names a next page on another host, {urlsplit(address).netloc}", passes=False)
    return address


def _text(url: str, answer: Answer) -> str:
    try:
        return answer.body.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise HttpFailure(url, f"sends something that is not UTF-8 (byte {error.start})", passes=False) from None


def _at(text: str, path: str) -> Any:
    """The value at a path of names; None where it is not there."""
    found = json.loads(text)
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _records(url: str, text: str, items: str) -> list[str]:
    """The elements of the list at a path, each as it was written: no number is rounded on the way."""
    try:
        start = _begin(text, 0)
        for name in items.split(".") if items else ():
            start = _member(text, start, name)
        if text[start] != "[":
            raise LookupError
        return _elements(text, start)
    except (LookupError, ValueError):
        where = f"a list at '{items}'" if items else "a list of records"
        raise HttpFailure(url, f"should send JSON with {where}, and sends {text[:80]!r}", passes=False) from None


def _begin(text: str, place: int) -> int:
    while text[place] in _BLANKS:
        place += 1
    return place


def _member(text: str, place: int, wanted: str) -> int:
    """Where the value of an object's member begins."""
    if text[place] != "{":
        raise LookupError(wanted)
    place = _begin(text, place + 1)
    while text[place] != "}":
        name, place = _DECODER.raw_decode(text, place)
        place = _begin(text, _begin(text, place) + 1)  # past the colon
        if name == wanted:
            return place
        _, place = _DECODER.raw_decode(text, place)
        place = _begin(text, place)
        place = _begin(text, place + 1) if text[place] == "," else place
    raise LookupError(wanted)


def _elements(text: str, place: int) -> list[str]:
    found = []
    place = _begin(text, place + 1)
    while text[place] != "]":
        _, end = _DECODER.raw_decode(text, place)
        found.append(text[place:end])
        place = _begin(text, end)
        place = _begin(text, place + 1) if text[place] == "," else place
    return found
