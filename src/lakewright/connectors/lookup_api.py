"""An HTTP API that tells something about keys, many at a time: places of IP addresses, names of products.

Guarantee:
    Every key that goes in comes out once, with what the API says of it or with the reason why there is nothing. A call
    holds at most ``per_call`` keys, the last one what is left. Limits of the server and failures that may pass are
    treated as `Caller` does; keys that an answer leaves out, and those of an answer that cannot be read, are asked for
    again ``ask_again`` times. After ``give_up_after`` calls in a row that failed, nobody is asked any more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode, urlsplit

from lakewright.connectors.http_calls import Answer, Caller, HttpFailure, revealed_headers
from lakewright.errors import ConfigurationError
from lakewright.model.secrets import secrets_folder

__all__ = ["LookedUp", "LookupApi", "look_up"]


@dataclass(frozen=True, slots=True)
class LookupApi:
    """Where to ask, and how.

    Keys go into the parameter ``keys``, separated by commas, or with ``method="POST"`` as a list into the member of
    that name of a JSON body. The answer has, at the path ``answers`` (empty: itself), an object from key to value; or a
    list of objects, of which ``key_field`` tells the key.
    """

    url: str
    keys: str = "keys"
    method: Literal["GET", "POST"] = "GET"
    answers: str = ""
    key_field: str | None = None
    per_call: int = 100
    per_second: float = 10.0
    tries: int = 5
    ask_again: int = 1
    give_up_after: int = 3
    timeout_seconds: float = 30.0
    headers: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    folder: Path | None = field(default_factory=secrets_folder, repr=False, compare=False)
    """Where the relative paths of secrets begin: the folder of the project in whose file the API is named; else where
    the process runs."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.password:
            raise ConfigurationError(
                "LookupApi: the url is an address such as https://geo.example/lookup, without a password."
            )
        if self.method not in ("GET", "POST"):
            raise ConfigurationError(f"LookupApi: method is 'GET' or 'POST', not {self.method!r}.")
        if self.per_call < 1 or self.tries < 1 or self.give_up_after < 1 or self.ask_again < 0 or self.per_second <= 0:
            raise ConfigurationError(
                "LookupApi: per_call, tries and give_up_after are at least 1, ask_again at least 0, and per_second is "
                "more than 0."
            )

    def caller(self) -> Caller:
        """Who asks; secrets are looked up now."""
        headers = revealed_headers(self.headers, self.folder)
        return Caller(headers, tries=self.tries, timeout_seconds=self.timeout_seconds, per_second=self.per_second)


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What became of one key: a value, or the problem."""

    key: str
    value: Any = None
    problem: str | None = None


def look_up(
    keys: Iterable[str], api: LookupApi, *, sleep: Callable[[float], None] = time.sleep, caller: Caller | None = None
) -> Iterator[LookedUp]:
    """Ask for keys, which are all different, call by call; what was answered is given on at once."""
    asking = caller or api.caller()
    asking.sleep = sleep
    failed, why = 0, ""
    waiting = iter(keys)
    while chunk := list(islice(waiting, api.per_call)):
        if failed >= api.give_up_after:
            yield from (LookedUp(key, problem=f"not asked: {failed} calls before it failed ({why})") for key in chunk)
            continue
        found, problem = _ask(asking, api, chunk)
        failed, why = (failed + 1, problem) if problem and not found else (0, "")
        for key in chunk:
            if key not in found:
                yield LookedUp(key, problem=problem or "the API left it out")
            elif found[key] is None:
                yield LookedUp(key, problem="the API does not know it")
            else:
                yield LookedUp(key, found[key])


def _ask(caller: Caller, api: LookupApi, chunk: Sequence[str]) -> tuple[dict[str, Any], str]:
    """What the API says of some keys, and why it does not of the others."""
    found: dict[str, Any] = {}
    problem = ""
    for _ in range(1 + api.ask_again):
        pending = [key for key in chunk if key not in found and (api.method == "POST" or "," not in key)]
        if not pending:
            break
        try:
            said = _read(_call(caller, api, pending), api)
        except HttpFailure as failure:
            return found, failure.problem
        problem = "it sends something else than was asked for" if said is None else ""
        wanted = set(pending)
        found |= {key: value for key, value in (said or {}).items() if key in wanted}
    if not problem and any("," in key for key in chunk if key not in found):
        problem = 'a comma in a key: ask by method="POST"'
    return found, problem


def _call(caller: Caller, api: LookupApi, keys: Sequence[str]) -> Answer:
    if api.method == "POST":
        return caller.post(api.url, json.dumps({api.keys: list(keys)}).encode())
    mark = "&" if urlsplit(api.url).query else "?"
    return caller.get(f"{api.url}{mark}{urlencode({api.keys: ','.join(keys)})}")


def _read(answer: Answer, api: LookupApi) -> dict[str, Any] | None:
    """Key -> value; None where the answer is none of ours."""
    try:
        said = json.loads(answer.body.decode("utf-8-sig"))
    except ValueError:
        return None
    for name in api.answers.split(".") if api.answers else ():
        said = said.get(name) if isinstance(said, dict) else None
    if api.key_field is None:
        return said if isinstance(said, dict) else None
    if not isinstance(said, list):
        return None
    return {str(one[api.key_field]): one for one in said if isinstance(one, dict) and api.key_field in one}
