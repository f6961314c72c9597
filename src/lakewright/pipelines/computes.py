"""Computes: a run whose steps are made by more than one Spark.

A Python process holds one classic Spark, and classic and Connect sessions do not mix in it. So the slices of a step
that names another compute are made by a process of their own: one for each compute and run, started when the first such
slice is due, kept warm for the run, and ended with it.

Guarantee:
    Such a slice is made under the run as any other: the same run, owner, lease, attempts, receipts, retries, timeout
    and errors. A worker that dies costs the attempts that it had under way, each as a passing trouble: what it may have
    committed is fenced and read from the log before the slice is tried again in a new one. No worker outlives its run.
"""

from __future__ import annotations

import shlex
import sys
import threading
from collections.abc import Sequence
from typing import Self

from lakewright.errors import ConfigurationError, TargetError
from lakewright.lake.delta_errors import is_transient
from lakewright.model.times import utc_now
from lakewright.pipelines.compute_messages import Begin, MakeSlice
from lakewright.pipelines.compute_process import ComputeProcess, ProcessEnded
from lakewright.pipelines.definitions import Dataset
from lakewright.pipelines.making import places_of
from lakewright.pipelines.states import SliceState
from lakewright.pipelines.workshop import Made, Workshop
from lakewright.runtime.connect import is_connect
from lakewright.runtime.settings import Settings, Target

__all__ = ["Computes", "compute_of", "continuous_compute", "with_compute"]

_PATIENCE = 20.0
"""So long a worker may take to end with its run."""


def compute_of(target: Target, dataset: Dataset) -> str | None:
    """The compute that makes a dataset's slices; None where it is the target's own Spark."""
    name = dataset.compute
    return None if name is None or target.with_compute(name) is target else name


def with_compute(settings: Settings, name: str) -> Settings:
    """The same project with the Spark of one of its target's computes, under a name of its own in Spark's pages."""
    target = settings.target.with_compute(name)
    if not is_connect(target.master):
        spark = {"spark.app.name": f"lakewright {settings.name}, {name}", **target.spark}
        target = target.model_copy(update={"spark": spark})
    return settings.model_copy(update={"target": target})


def continuous_compute(target: Target, streams: Sequence[Dataset], *, running: bool) -> str | None:
    """The compute of streams that are kept going: the process's own Spark, so they must agree on one.

    With ``running`` it has a session already.
    """
    groups: dict[str | None, list[str]] = {}
    for dataset in streams:
        groups.setdefault(compute_of(target, dataset), []).append(dataset.name)
    if list(groups) == [None]:
        return None
    if len(groups) == 1 and not running:
        return next(iter(groups))
    told = "; ".join(f"{', '.join(names)}: {name or 'its own Spark'}" for name, names in groups.items())
    commands = [
        shlex.join(["lakewright", "run", "--continuous", *(word for name in names for word in ("--select", name))])
        for names in groups.values()
    ]
    raise ConfigurationError(
        f"These streams ask for computes of the target '{target.name}' ({told}), and a process that keeps streams "
        f"going has one Spark{', which has started already' if running else ''}. Nothing was started.",
        hint="Keep each going in a process of its own: " + " & ".join(f"`{one}`" for one in commands),
    )


class Computes:
    """The workers of one run."""

    def __init__(self, settings: Settings, *, parallel: int) -> None:
        self._settings = settings
        self._parallel = parallel
        self._workers: dict[str, ComputeProcess] = {}
        self._started: list[ComputeProcess] = []
        self._lock = threading.Lock()

    def serve(self, dataset: Dataset) -> bool:
        """Whether a dataset's slices are made by a worker."""
        return compute_of(self._settings.target, dataset) is not None

    def prepare(self, shop: Workshop, dataset: Dataset, slice_id: str) -> ComputeProcess:
        """The worker of a dataset, once its Spark has started.

        One that could not start, for a reason that does not pass, is not tried again for every slice.
        """
        name = str(dataset.compute)
        worker = self._worker(shop, name)
        try:
            worker.ready.result()
        except ProcessEnded as error:
            raise self._lost(shop, dataset, slice_id, worker, error) from ConnectionError(str(error))
        except Exception as error:
            if is_transient(error):
                self._forget(name, worker)
            worker.retire()
            raise
        return worker

    def make(
        self, shop: Workshop, dataset: Dataset, state: SliceState, *, attempt: int = 1, tags: tuple[str, ...] = ()
    ) -> Made:
        """Let the worker make a slice; raises what was raised there."""
        worker = self.prepare(shop, dataset, state.slice.id)
        order = MakeSlice(
            number=worker.next_number(),
            dataset=dataset.name,
            state=state,
            attempt=attempt,
            code=shop.codes.get(dataset.name),
            places=places_of(shop.lake, dataset),
            known=shop.known,
            tags=tags,
            ahead=shop.now() - utc_now(),
        )
        try:
            return worker.make(order)
        except ProcessEnded as error:
            raise self._lost(shop, dataset, state.slice.id, worker, error) from ConnectionError(str(error))

    def interrupt(self, tag: str, *, stop: bool = False) -> None:
        """Stop the Spark work with this mark, whichever worker runs it; with ``stop`` the run as a whole is to end."""
        for worker in self._started:
            worker.interrupt(tag, stop=stop)

    def close(self) -> None:
        """End the workers, and wait until they have."""
        for worker in self._started:
            worker.retire()
        for worker in self._started:
            worker.end(_PATIENCE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _worker(self, shop: Workshop, name: str) -> ComputeProcess:
        with self._lock:
            if name not in self._workers:
                begin = Begin(
                    settings=with_compute(self._settings, name),
                    run=shop.run,
                    owner_id=shop.owner_id,
                    borrowed={dataset: shop.lake.resolve(dataset) for dataset in shop.lake.borrowed},
                    parallel=self._parallel,
                    path=tuple(sys.path),
                )
                log = self._settings.target.state / "logs" / f"compute-{name}.log"
                self._workers[name] = ComputeProcess(begin, log=log)
                self._started.append(self._workers[name])
            return self._workers[name]

    def _forget(self, name: str, worker: ComputeProcess) -> None:
        """Let the next slice have a new worker."""
        with self._lock:
            if self._workers.get(name) is worker:
                del self._workers[name]

    def _lost(
        self, shop: Workshop, dataset: Dataset, slice_id: str, worker: ComputeProcess, error: ProcessEnded
    ) -> TargetError:
        """Leave the lease of a slice whose worker has died to the next attempt, which fences and recovers it."""
        self._forget(str(dataset.compute), worker)
        worker.retire()
        shop.store.leases.abandon(dataset.name, slice_id, owner_id=shop.owner_id)
        return TargetError(
            f"{dataset.name} {slice_id}: the process of the compute '{dataset.compute}' has ended ({error}). Whether "
            "its last commit was made is found in the log.",
            hint="`lakewright run` goes on from here. If memory was short, give it more: `driver_memory` of the "
            "compute.",
        )
