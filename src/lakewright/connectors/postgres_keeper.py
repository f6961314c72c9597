"""The keeper: a role of PostgreSQL that owns what was loaded, so that the loader cannot change it any more.

The owner of a table may always drop it. So a loader hands its table over to a role that it is not a member of, by a
function that runs with that role's rights (``_lw_keep``, made once by an administrator). There is no way back for it.

Guarantee:
    A table that was handed over can be read by the loader, and nothing else: this is looked up in the same transaction,
    which is refused where a right is left.
"""

from __future__ import annotations

from lakewright.connectors.postgres_connection import Session, TableName, ask, connecting, quoted, words
from lakewright.errors import ConfigurationError
from lakewright.model.connections import Connection

__all__ = ["hand_over", "refuse_no_keeper", "set_up_keeper"]

_KEEP = "_lw_keep"


def set_up_keeper(administrator: Connection, *, keeper: str, loader: str, schema: str = "public") -> None:
    """Make the role and the function, once, as an administrator; repeating it changes nothing."""
    what = f"{administrator.name}: keeper {keeper}"
    with connecting(administrator, what=what, effect="Nothing was changed.") as session, session.transaction():
        if ask(session, "SELECT 1 FROM pg_roles WHERE rolname = %s", (keeper,)).fetchone() is None:
            ask(session, f"CREATE ROLE {quoted(keeper)} NOLOGIN")
        ask(session, f"GRANT {quoted(loader)} TO {quoted(keeper)}")
        ask(session, f"GRANT USAGE, CREATE ON SCHEMA {quoted(schema)} TO {quoted(keeper)}")
        function = f"{quoted(schema)}.{quoted(_KEEP)}(text)"
        ask(session, _function(schema, keeper))
        ask(session, f"ALTER FUNCTION {function} OWNER TO {quoted(keeper)}")
        ask(session, f"REVOKE ALL ON FUNCTION {function} FROM PUBLIC")
        ask(session, f"GRANT EXECUTE ON FUNCTION {function} TO {quoted(loader)}")


def refuse_no_keeper(session: Session, view: TableName, keeper: str, *, what: str) -> None:
    """Refuse to begin where nobody could take the table over."""
    owner = ask(
        session,
        "SELECT pg_get_userbyid(proowner) FROM pg_proc WHERE oid = to_regprocedure(%s)",
        (f"{view.beside(_KEEP).sql}(text)",),
    ).fetchone()
    if owner is None or owner[0] != keeper:
        found = "is not there" if owner is None else f"belongs to {owner[0]}"
        raise ConfigurationError(
            f"{what}: the function {_KEEP}, by which {keeper} takes over what was loaded, {found}. Nothing was "
            "written.",
            hint=f'Let an administrator call set_up_keeper(connection, keeper="{keeper}", loader=...) once.',
        )


def hand_over(session: Session, table: TableName, keeper: str, *, what: str) -> None:
    """Give a table to the keeper, in the caller's transaction, and refuse where we could still change it."""
    ask(session, f"SELECT {table.beside(_KEEP).sql}(%s)", (table.name,))
    row = ask(
        session,
        "SELECT current_user, current_setting('is_superuser') = 'on', pg_has_role(c.relowner, 'MEMBER'), "
        "pg_has_role(n.nspowner, 'MEMBER'), has_table_privilege(c.oid, 'INSERT, UPDATE, DELETE, TRUNCATE') "
        "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
        (table.sql,),
    ).fetchone()
    assert row is not None
    user, *rights = row
    reasons = (
        "it is a superuser",
        f"it is a member of {keeper}",
        "it owns the schema, or the database",
        "it was granted the right to",
    )
    left = [reason for reason, has in zip(reasons, rights, strict=True) if has]
    if left:
        raise ConfigurationError(
            f"{what}: {user} could still change what it has loaded: {left[0]}. Nothing was written.",
            hint="Load as a role of its own that may only create tables in the schema.",
        )


def _function(schema: str, keeper: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION {quoted(schema)}.{quoted(_KEEP)}(kept text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $body$
DECLARE
  was name;
BEGIN
  SELECT pg_get_userbyid(c.relowner) INTO STRICT was FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  WHERE n.nspname = {words(schema)} AND c.relname = kept AND c.relkind = 'r';
  IF was <> {words(keeper)} THEN
    EXECUTE format('ALTER TABLE %I.%I OWNER TO %I', {words(schema)}, kept, {words(keeper)});
    EXECUTE format('GRANT SELECT ON %I.%I TO %I', {words(schema)}, kept, was);
  END IF;
END
$body$"""
