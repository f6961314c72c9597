"""Explaining: for every step and slice of a plan why it runs or not, by which policy, and of which input versions.

Guarantee:
    Every dataset of the plan is explained, and every slice of it that is known: one by one where there is something to
    say, those that are fresh as a group. Nothing is decided here: the states of the plan are told, with their grounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from lakewright.model.references import Latest, Pinned, Whole
from lakewright.model.slices import Slice
from lakewright.pipelines.graph import Graph
from lakewright.pipelines.planning import Plan
from lakewright.pipelines.policy_words import policy_in_words
from lakewright.pipelines.standing import FAILING, News, blocked_by, reached_by_news
from lakewright.pipelines.states import DatasetPlan, SliceState
from lakewright.store import ELSEWHERE, WHOLE_DATASET, Head, LiveSlice, Store

__all__ = ["Why", "explain"]

_UNMADE = ("due", "missing", "waiting", "rolled back", "overdue", "unmet", "partial", "skipped")
_NOTHING_NEWER = "nothing newer than what they were made of"


@dataclass(frozen=True, slots=True)
class Why:
    """One line: what runs or does not, and why."""

    what: str
    """A slice, a group of them, or ``all`` of a dataset."""
    runs: bool | None
    """None where that is known only when what is new was read."""
    status: str
    reason: str
    policy: str = ""
    """The option of the dataset that decides it, as it would be written in the project."""
    inputs: str = ""
    """The versions that it was made of, and those that are there now."""


def explain(plan: Plan, graph: Graph, store: Store, now: datetime) -> dict[str, list[Why]]:
    """Dataset -> its lines, in the order of the plan; a few indexed queries for each dataset."""
    heads, blocked, reached = store.receipts.heads(), blocked_by(plan, graph), reached_by_news(plan, graph)
    kept = {
        lease.dataset: str(lease.owner or lease.owner_id)
        for lease in store.leases.held(now)
        if lease.slice_id == WHOLE_DATASET and lease.alive
    }
    found = {}
    for one in plan.datasets:
        name = one.dataset.name
        if (target := plan.read_from.get(name)) is not None:
            found[name] = [Why("all", False, "elsewhere", f"read from {target}, and not made here")]
            continue
        live = store.receipts.live_slices(name) if name in heads else {}
        teller = _Teller(one, graph, heads, live, blocked.get(name), reached.get(name), kept.get(name))
        found[name] = list(teller.lines())
    return found


class _Teller:
    """What is to be said of one dataset."""

    def __init__(
        self,
        one: DatasetPlan,
        graph: Graph,
        heads: Mapping[str, Head],
        live: Mapping[str, LiveSlice],
        blocked: str | None,
        news: News | None,
        kept_by: str | None,
    ) -> None:
        self._one, self._graph, self._heads, self._live = one, graph, heads, live
        self._blocked, self._news, self._kept_by = blocked, news, kept_by

    def lines(self) -> Iterator[Why]:
        one, dataset = self._one, self._one.dataset
        if self._blocked is not None:
            yield Why("all", False, "blocked", f"{self._blocked} above it does not succeed as it stands")
        if dataset.is_stream:
            yield self._stream()
            return
        if dataset.is_source:
            yield from self._source()
        for state in one.states:
            yield self._slice(state)
        yield from self._fresh()
        if self._news is not None:
            yield self._following()
        elif not dataset.is_source and not one.states and not self._live and self._blocked is None:
            yield Why("all", False, "nothing yet", self._why_nothing())
        yield from self._let_be()

    def _stream(self) -> Why:
        one = self._one
        if self._kept_by is not None:
            return Why("all", False, "kept going", f"{self._kept_by} keeps the stream going; it is read as it stands")
        if one.new and self._blocked is None:
            return Why("all", True, "due", one.new)
        if self._news is not None:
            return self._following()
        read = f"; {_count(one.live, 'micro-batch', 'micro-batches')} read" if one.live else ""
        return Why("all", False, "fresh" if one.live else "nothing yet", f"nothing new for the stream{read}")

    def _following(self) -> Why:
        assert self._news is not None
        reason = f"what is new in {self._news.source} is read first; the slices that it touches follow in the same run"
        return Why("more", None, "may follow", reason)

    def _source(self) -> Iterator[Why]:
        one = self._one
        if one.new:
            yield Why("new", True, "due", one.new)
        for waits in one.waits:
            yield Why("new", False, "waiting", waits)
        if not one.new and not one.waits and not one.states:
            yield Why("new", False, "fresh" if one.live else "nothing yet", "there is nothing new to take")

    def _slice(self, state: SliceState) -> Why:
        runs = state.make and state.status not in (*FAILING, "unmet", "held", "skipped") and self._blocked is None
        reason = state.reason if state.cure is None else f"{state.reason}. {state.cure}"
        if state.make and state.status in FAILING:
            reason = f"the run fails for it: {reason}"
        elif state.make and state.status == "held":
            reason = f"its late rows are kept aside: {reason}"
        elif state.make and state.status == "unmet":
            reason = f"the fallback is called: {reason}"
        return Why(state.slice.id, runs, state.status, reason, self._policy(state, runs), self._inputs(state))

    def _fresh(self) -> Iterator[Why]:
        known = {state.slice.id for state in self._one.states if state.status not in _UNMADE}
        fresh = sorted(Slice.parse(slice_id) for slice_id in self._live.keys() - known)
        if not fresh:
            return
        span = fresh[0].id if len(fresh) == 1 else f"{fresh[0].id} … {fresh[-1].id}"
        if self._one.dataset.is_source:
            yield Why(_count(len(fresh), "arrival", "arrivals"), False, "fresh", f"taken ({span})")
            return
        reason = _NOTHING_NEWER if len(fresh) > 1 else "nothing newer than what it was made of"
        what = _count(len(fresh), "slice", "slices")
        yield Why(what, False, "fresh", f"{reason} ({span})", inputs=self._made_of(fresh))

    def _let_be(self) -> Iterator[Why]:
        """Inputs that have changed since, and are read in a way that makes nothing again."""
        dataset = self._one.dataset
        for given in dataset.inputs if self._live else ():
            reference = self._graph.reference(dataset, given)
            if not isinstance(reference, Whole | Latest | Pinned) or given.dataset not in self._heads:
                continue
            now = self._heads[given.dataset].version
            behind = sum(1 for made in self._live.values() if 0 <= made.inputs.get(given.dataset, -1) < now)
            if behind:
                yield Why(
                    _count(behind, "slice", "slices"),
                    False,
                    "let be",
                    f"{given.dataset} has changed since, and is read in a way that makes nothing again",
                    policy=f"{given.parameter}={type(reference).__name__}()",
                    inputs=f"{given.dataset} {now} now",
                )

    def _why_nothing(self) -> str:
        dataset = self._one.dataset
        names = [name for given in dataset.inputs for name in given.datasets if name != dataset.name]
        if missing := [name for name in names if name not in self._heads]:
            return f"{missing[0]} has nothing yet"
        return "its inputs have no rows for a slice of it"

    def _policy(self, state: SliceState, runs: bool) -> str:
        dataset = self._one.dataset
        told = policy_in_words(dataset, state)
        if runs and dataset.depends_on_past and len(self._one.to_make) > 1:
            return "; ".join(filter(None, (told, "depends_on_past: after those before it")))
        return told

    def _inputs(self, state: SliceState) -> str:
        """Each input with the version that the slice was made of, and the one that is there now."""
        made = self._live.get(state.slice.id)
        told = []
        for name in self._names():
            then, now = (None if made is None else made.inputs.get(name)), self._version(name)
            if then == ELSEWHERE:
                told.append(f"{name} of another lake")
            elif then is not None and now is not None and now > then:
                told.append(f"{name} {then} → {now}")
            elif then is not None or now is not None:
                told.append(f"{name} {now if then is None else then}")
        return ", ".join(told)

    def _made_of(self, slices: Sequence[Slice]) -> str:
        """The versions that some slices were made of, from the oldest to the newest."""
        told = []
        for name in self._names():
            versions = {self._live[one.id].inputs.get(name, ELSEWHERE) for one in slices} - {ELSEWHERE}
            if versions:
                first, last = min(versions), max(versions)
                told.append(f"{name} {first}" if first == last else f"{name} {first} to {last}")
        return ", ".join(told)

    def _names(self) -> list[str]:
        dataset = self._one.dataset
        names = dict.fromkeys(name for given in dataset.inputs for name in given.datasets)
        return [name for name in names if name != dataset.name]

    def _version(self, name: str) -> int | None:
        return self._heads[name].version if name in self._heads else None


def _count(number: int, one: str, more: str) -> str:
    return f"{number:,} {one if number == 1 else more}"
