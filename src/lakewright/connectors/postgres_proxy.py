"""Write-once versions behind a view of PostgreSQL: ``into=PostgresProxy("blog_db", "devices", keeper="vault")``.

Guarantee:
    Every load has a table of its own (``devices_3``) that appears whole and is never changed or dropped again; the view
    ``devices`` shows the newest, in one transaction with the ledger's row. A repeat of the same slice makes one more
    table. With ``keeper`` the database denies the loader to change or drop what it has loaded. A load whose view could
    not be switched is not loaded again by the next attempt, if nothing that it was made from has changed.
Consequences:
    - All versions stay: the keeper, or an administrator, drops what need not be kept any longer.
    - A column that was dropped, moved or retyped makes the view anew in that transaction, with its grants; that is
      refused where other views are built on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakewright.connectors.postgres_connection import TableName
from lakewright.connectors.postgres_opened import OpenedView, PostgresDestination
from lakewright.errors import ConfigurationError
from lakewright.model.loads import LoadLimits
from lakewright.model.protocols import Writer

if TYPE_CHECKING:  # a project file names destinations before Spark is there
    from lakewright.connectors.postgres_proxy_load import WriteOnceLoad

__all__ = ["PostgresProxy"]


@dataclass(frozen=True, slots=True)
class PostgresProxy(PostgresDestination):
    """A view (``devices`` or ``shop.devices``) of a connection, and the write-once tables behind it."""

    connection: str
    view: str
    keeper: str | None = None
    """The role that owns what was loaded, so that the loader cannot change it."""
    min_rows: int = 1
    max_loss: float | None = None
    rules: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Name -> a condition in PostgreSQL's SQL that every row fulfils before a version is shown."""

    def __post_init__(self) -> None:
        if not self.connection:
            raise ConfigurationError("PostgresProxy: name the connection, as [connections.NAME] declares it.")
        if not self.view or TableName.parse(self.view).name.startswith("_lw_"):
            raise ConfigurationError(f"PostgresProxy: '{self.view}' is no name for a view. Write devices.")
        if self.keeper == "":
            raise ConfigurationError("PostgresProxy: keeper is the name of a role, or left out.")
        self.limits  # noqa: B018  (a wrong limit is told when the file is loaded)

    @property
    def keeps_versions(self) -> bool:
        """Whether it can be rolled back."""
        return True

    @property
    def limits(self) -> LoadLimits:
        return LoadLimits(self.min_rows, self.max_loss, self.rules)

    @property
    def relation(self) -> str:
        return self.view

    @property
    def opened_as(self) -> type[OpenedProxy]:
        return OpenedProxy

    def check_writer(self, dataset: str, writer: Writer) -> None:
        """Refuse what does not write the whole: a version is complete or it is none."""
        if not writer.replaces_slice:
            raise ConfigurationError(
                f"{dataset}: {type(writer).__name__} changes a table, and what lies behind a proxy is written once.",
                hint="Use DataOverwrite(), or into=PostgresTable(...).",
            )


class OpenedProxy(OpenedView[PostgresProxy]):
    """`PostgresProxy` opened for one attempt: fulfils ``OutsideTable`` and ``ShowsEarlier``."""

    def _load(self) -> WriteOnceLoad:
        from lakewright.connectors.postgres_proxy_load import WriteOnceLoad

        return WriteOnceLoad(
            connection=self._connection,
            view=self._relation,
            dataset=self._dataset,
            identity=self._identity,
            what=self._what,
            still_mine=self._still_mine,
            keep=1,  # of no effect: nothing is dropped
            limits=self._destination.limits,
            keeper=self._destination.keeper,
            made_from=self._identity.made_from,
        )
