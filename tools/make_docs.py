"""Write the pages that follow from the code: settings, errors, commands, patterns, and README's list.

`python tools/make_docs.py` writes them. With `--check` it changes nothing, and exits with 1 and their names
where one of them is not what the code says.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from lakewright import errors  # noqa: E402
from lakewright.catalogue import CHAPTERS, PATTERNS, Pattern  # noqa: E402
from lakewright.runtime import compute_settings, connection_settings, settings  # noqa: E402

NOTE = "<!-- Made by tools/make_docs.py from the code. Do not edit: run `python tools/make_docs.py`. -->\n\n"
README_BEGIN = "<!-- patterns: begin (made by tools/make_docs.py) -->\n"
README_END = "<!-- patterns: end -->"
CLASSIC_BEGIN = "<!-- classic only: begin (made by tools/make_docs.py) -->\n"
CLASSIC_END = "<!-- classic only: end -->"

PROJECT_KEYS = {
    "name": "What the project is called in messages. Left out: the name of its folder.",
    "pipelines": "Which files declare pipelines, as patterns below the project's folder.",
    "default_target": "The target to use when nobody names one. Left out: `dev`, or the only one there is.",
    "pools": "How many runs of each pool may be at work at once: `ingestion = 3` in the table `[pools]`.",
    "connections": "Databases and brokers by name: one table `[connections.NAME]` each. See below.",
    "targets": "The places where the project can run: one table `[targets.NAME]` each, with the keys below.",
}
TARGET_KEYS = {
    "lake": "Where the tables lie: a folder (a relative one starts at the project) or a URI.",
    "store": "The control store: the path or URL of an SQLite file, or `postgresql://USER@HOST/DATABASE`. See below.",
    "store_password": "A reference to the password of a store on PostgreSQL, such as `secret://env/STORE_PASSWORD`.",
    "master": "Where Spark runs: `local[*]`, `spark://…`, `yarn`, `k8s://…`, or `sc://…` (its token as a reference).",
    "spark": "Further Spark settings, each under its own name. They win over our local defaults.",
    "driver_memory": "Memory of a local Spark, such as `2g` or `512m`.",
    "parallel": "How many slices are made side by side.",
    "outdated": "What a run does with slices whose code has changed: `show` names them, `run` makes them again.",
    "outdated_limit": 'With `outdated = "run"`: a dataset with more outdated slices than this is only shown.',
    "upstream": "Another target, from whose lake everything is read that this one has not made itself. See below.",
    "logstore": "The Delta log store class of an object store on which several drivers write.",
    "fast_start": "Run local Spark for short work: quick to begin and on thousands of rows, slower on millions (no "
    "generated code, no adaptive planning, one compiler, few tasks).",
    "compute": "Other Sparks by name, for the steps that ask for one: `[targets.NAME.compute.COMPUTE]`. See below.",
    "connections": "Connections that replace those of the project of the same name, each as a whole.",
}
COMPUTE_KEYS = {
    "master": "Where this Spark runs.",
    "spark": "Spark settings that add to those of the target, or replace them. None are taken over between a Connect "
    "server and a Spark that is none.",
    "driver_memory": "Memory of a local Spark.",
    "fast_start": "Run a local Spark for short work.",
}
CONNECTION_KEYS = {
    "url": "`postgresql://USER@HOST:PORT/DATABASE`, `kafka://HOST:PORT,HOST:PORT`, or `debezium://HOST:PORT`. "
    "Never with a password.",
    "password": "A reference to the password of a database, such as `secret://env/BLOG_DB_PASSWORD`.",
    "options": "Options of the client by their own names; a secret among them is a reference. One that begins with "
    "`spark.` goes to the client of Spark alone, without that prefix.",
    "service": "`postgres`, `kafka` or `debezium`: the one that `lakewright services up` runs for this project, and no "
    "other key.",
}
VARIABLES = {
    "LAKEWRIGHT_TARGET": "The target to use; `--target` wins over it.",
    "LAKEWRIGHT_HOME": "Where fetched jars and the class archive are kept. Default: `~/.cache/lakewright`.",
    "LAKEWRIGHT_IVY_SETTINGS": "An Ivy settings file that names your own Maven repository.",
    "LAKEWRIGHT_TEST_ENGINE": "For tests only: `classic` (the default) or `connect`; `pytest --engine` wins over it.",
    "LAKEWRIGHT_FAILPOINT": "For tests only: the failpoint at which the process dies (`published`, `published:3`).",
    "LAKEWRIGHT_FAILPOINT_ACTION": "For tests only: `kill` (the default), `exit`, `raise` or `pause`.",
    "LAKEWRIGHT_FAILPOINT_DIR": "For tests only: the folder through which `pause` talks to the test.",
}
TEAM = [
    "## A store for a team",
    "",
    "An SQLite file serves one machine. Where several run the same target, the store goes to PostgreSQL (13 or newer):",
    "",
    "```sh",
    'pip install "lakewright[postgres]"',
    "createdb --owner shop shop_store",
    "export LAKEWRIGHT_STORE=postgresql://shop@db.example.com/shop_store",
    "```",
    "",
    'or `store = "postgresql://shop@db.example.com/shop_store"` in the target.',
    "",
    "- It needs a database of its own, whose owner is the user. The tables are made, and brought up to date, by",
    "  whoever opens it first; a store from a newer release is refused.",
    "- Keep the password out of the file: `store_password` names where it is ([secrets](secrets.md)); `PGPASSWORD` and",
    "  `~/.pgpass` work too. One in the address is not shown in any message; write `@` in it as `%40`, `/` as `%2F`.",
    "  Options such as `?sslmode=verify-full` may follow.",
    "- Leases end by the clock of the server, so the clocks of the machines need not agree. A runner on another",
    "  machine counts as gone when it has been silent for a minute.",
    "- A server that was restarted between two calls is not noticed. Where a connection is lost within a transaction,",
    "  nothing of it is kept, and the error says so; where the answer to a commit was lost, its fate is found out.",
    "- A connection pooler must keep sessions together (PgBouncer: `pool_mode = session`).",
    "",
]
UPSTREAM = [
    "## Reading from another target",
    "",
    "A developer rarely wants to copy production before a step can be tried. With `upstream` a target reads another",
    "one's lake where it has no table of its own:",
    "",
    "```toml",
    "[targets.prod]",
    'lake = "/data/shop/lake"',
    'store = "/data/shop/store.db"',
    "",
    "[targets.dev]",
    'upstream = "prod"',
    "```",
    "",
    "`lakewright run --select clean_orders+ --target dev` makes `clean_orders` and everything below it in dev's own",
    "lake, from prod's bronze. Run it again and all is fresh; once prod has taken a late file, the slice is late in",
    "dev too. `plan` says `read from prod` where that is so, and so does `status`.",
    "",
    "- Nothing is ever written to the upstream: no commit, no lock, no row of its store.",
    "- What a run is asked to make is dev's own from then on, and read from there. Its readers are made again.",
    "- A source that the upstream takes is not taken in dev, also when it is selected; one that the upstream does not",
    "  have is.",
    "- All steps of a run see an upstream table as it was when the run began.",
    "- dev knows as much of the past as the upstream's logs hold: 30 days, unless `history` on the dataset says more.",
    "- The upstream may have one itself; the nearest table counts. Each target needs a lake and a store of its own.",
    "",
]
STATE_WORDS = {"finished": "finished", "started": "usable, not yet finished", "planned": "planned"}
EXIT_CODES = {
    0: "done",
    1: "the run failed",
    2: "wrong usage or configuration; nothing was started",
    3: "a guard refused; nothing was published",
    4: "not ready yet (`lakewright ready`, and readers that wait for a marker)",
    130: "interrupted",
}


def pages() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    makers: dict[str, Callable[[], str]] = {
        "docs/settings.md": settings_page,
        "docs/errors.md": errors_page,
        "docs/patterns/index.md": patterns_page,
        "docs/reference/cli.md": cli_page,
        "docs/clusters.md": clusters_page,
        "README.md": readme,
    }
    return {ROOT / name: make() for name, make in makers.items()}


# Settings


def settings_page() -> str:
    lines = [
        "# Settings",
        "",
        NOTE.rstrip(),
        "",
        "A project is a folder with a file `lakewright.toml`. Commands find it in the folder where they are typed",
        "or in one above. An empty file is a valid one: every key has a default. A key that is not known, or a value",
        "that does not fit, is refused with the file, the key and the nearest known key; nothing is started.",
        "",
        "```toml",
        'name = "shop"',
        "",
        "[targets.dev]",
        'outdated = "run"',
        "",
        "[targets.prod]",
        'lake = "/data/shop/lake"',
        'store = "/data/shop/store.db"',
        "parallel = 8",
        "```",
        "",
        "## The project",
        "",
        *_settings_table(settings._ProjectTable, PROJECT_KEYS, variables=False),
        "",
        "## A target",
        "",
        "The keys of `[targets.NAME]`. The variable in the third column wins over the file, for the chosen target.",
        "",
        *_settings_table(settings._TargetTable, TARGET_KEYS, variables=True),
        "",
        "The target is the one that `--target` names, else `LAKEWRIGHT_TARGET`, else `default_target` of the file,",
        "else the one called `dev`, else the only one. Relative paths start at the folder of the file.",
        "",
        "## A compute",
        "",
        "The keys of `[targets.TARGET.compute.NAME]`, each in place of the target's own; an empty one changes nothing.",
        'A step asks for it by `compute="NAME"`: see [Compute per step](clusters.md#compute-per-step).',
        "",
        *_settings_table(compute_settings.ComputeTable, COMPUTE_KEYS, variables=False),
        "",
        "## A connection",
        "",
        "The keys of `[connections.NAME]` and `[targets.TARGET.connections.NAME]`; examples are under",
        "[secrets and connections](secrets.md).",
        "",
        *_settings_table(connection_settings.ConnectionTable, CONNECTION_KEYS, variables=False),
        "",
        *TEAM,
        *UPSTREAM,
        "## Other variables",
        "",
        "| variable | meaning |",
        "| --- | --- |",
        *(f"| `{name}` | {text} |" for name, text in VARIABLES.items()),
    ]
    return "\n".join(lines) + "\n"


def _settings_table(model: Any, texts: dict[str, str], *, variables: bool) -> list[str]:
    _refuse_difference(model.__name__, set(model.model_fields), set(texts))
    head = "| key | default | variable | value | meaning |" if variables else "| key | default | value | meaning |"
    lines = [head, re.sub(r"[^|]+", " --- ", head)]
    for name, field in model.model_fields.items():
        cells = [f"`{name}`", _default(field)]
        if variables:
            table = name in ("spark", "connections", "compute")
            cells.append("" if table else f"`{settings.ENVIRONMENT_PREFIX}{name.upper()}`")
        lines.append("| " + " | ".join([*cells, _kind(field.annotation), texts[name]]) + " |")
    return lines


def _default(field: Any) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or value == {} or isinstance(value, dict):
        return "" if not value else "one target, `dev`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return "`[" + ", ".join(f'"{item}"' for item in value) + "]`"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _kind(annotation: Any) -> str:
    if get_origin(annotation) is Literal:
        return " or ".join(f'`"{choice}"`' for choice in get_args(annotation))
    text = str(annotation)
    for sign, word in (
        ("Mapping", "table"),
        ("tuple", "list of texts"),
        ("bool", "true or false"),
        ("int", "number"),
    ):
        if sign in text:
            return word
    return "text"


# Errors


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        NOTE.rstrip(),
        "",
        "Every error of ours is a `LakewrightError`: it says what happened, where, and whether anything was written,",
        "and it carries the facts as attributes. Classes tell what a caller can do about it, and with which code the",
        "command line ends.",
        "",
        "| exit code | meaning |",
        "| --- | --- |",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
    ]
    for name, kind in public_errors():
        parent = kind.__mro__[1].__name__
        about = f"A kind of `{parent}`. " if parent != "Exception" else ""
        lines += [
            "",
            f"## {name}",
            "",
            inspect.cleandoc(kind.__doc__ or "").replace("``", "`"),
            "",
            f"{about}Exit code {kind.exit_code}. Attributes: {', '.join(f'`{a}`' for a in _attributes(kind))}.",
        ]
    return "\n".join(lines) + "\n"


def public_errors() -> list[tuple[str, type[errors.LakewrightError]]]:
    """The classes of errors.py, the root first, then in the order of the file."""
    named = [(name, getattr(errors, name)) for name in errors.__all__]
    kinds = [(name, kind) for name, kind in named if inspect.isclass(kind)]
    return sorted(kinds, key=lambda found: inspect.getsourcelines(found[1])[1])


def _attributes(kind: type) -> Iterator[str]:
    seen: set[str] = set()
    for one in reversed(kind.__mro__):
        if one.__module__ != errors.__name__ or "__init__" not in vars(one):
            continue
        for name in re.findall(r"self\.([a-z_]+)\b[^=\n]*=(?!=)", inspect.getsource(one)):
            if name not in seen:
                seen.add(name)
                yield name


# Patterns


def patterns_page() -> str:
    counts = {state: sum(p.state == state for p in PATTERNS) for state in STATE_WORDS}
    lines = [
        "# Patterns",
        "",
        NOTE.rstrip(),
        "",
        f"Lakewright is built from {len(PATTERNS)} patterns. {counts['finished']} are finished, "
        f"{counts['started']} can be used and still lack something, {counts['planned']} are planned. Each can be",
        "called as a plain function, and those that belong into a pipeline have an option of their own.",
        "`lakewright patterns` prints the same list.",
        "",
        "*Finished* means: function and pipeline option, all variants, batch and stream where both apply, a test",
        "that kills it half-way, Spark Connect, every row accounted for, bad input, a page, and its use in a",
        "platform.",
    ]
    for chapter in CHAPTERS.values():
        lines += ["", f"## {chapter.title}", "", "| # | pattern | what it does | call | option | state |"]
        lines.append("| --- | --- | --- | --- | --- | --- |")
        lines += [_pattern_row(p) for p in PATTERNS if p.chapter == chapter.number]
    return "\n".join(lines) + "\n"


def _pattern_row(p: Pattern) -> str:
    there = p.state != "planned"
    name = f"[{p.name}]({p.folder}/{p.stem}.md)" if there else p.name
    call, option = (f"`{p.entry}`", f"`{p.option}`" if p.option else "") if there else ("", "")
    return f"| {p.number} | {name} | {p.summary} | {call} | {option} | {STATE_WORDS[p.state]} |"


def readme() -> str:
    """README.md with the list of patterns between its two markers made anew."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    before, begin, rest = text.partition(README_BEGIN)
    _, end, after = rest.partition(README_END)
    if not begin or not end:
        raise SystemExit(f"README.md has lost one of its markers:\n{README_BEGIN}{README_END}")
    counts = {state: sum(p.state == state for p in PATTERNS) for state in STATE_WORDS}
    table = ["| family | patterns that can be used |", "| --- | --- |"]  # a row per pattern would be no two screens
    for chapter in CHAPTERS.values():
        there = [p for p in PATTERNS if p.chapter == chapter.number and p.state != "planned"]
        links = ", ".join(f"[{p.name}](docs/{p.page})" for p in there)
        table.append(f"| {chapter.title} | {links or 'planned'} |")
    last = (
        f"\nOf {len(PATTERNS)} in all {counts['finished']} are finished, {counts['started']} can be used and still "
        f"lack something, {counts['planned']} are planned. "
        "[The whole list](docs/patterns/index.md) tells what each does."
    )
    return before + begin + "\n".join(table) + "\n" + last + "\n" + end + after


# Tests that cannot run over Spark Connect


def clusters_page() -> str:
    """docs/clusters.md with the list of `classic_only` tests between its two markers made anew."""
    text = (ROOT / "docs" / "clusters.md").read_text(encoding="utf-8")
    before, begin, rest = text.partition(CLASSIC_BEGIN)
    _, end, after = rest.partition(CLASSIC_END)
    if not begin or not end:
        raise SystemExit(f"docs/clusters.md has lost one of its markers:\n{CLASSIC_BEGIN}{CLASSIC_END}")
    rows = [f"| `{place}` | {reason} |" for place, reason in classic_only()]
    table = ["| test | why |", "| --- | --- |", *rows] if rows else ["No test is marked so."]
    return before + begin + "\n".join(["", *table, ""]) + "\n" + end + after


def classic_only() -> Iterator[tuple[str, str]]:
    """The tests with the marker `classic_only`, each with its reason; a file's `pytestmark` counts for all of it."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        name = file.relative_to(ROOT / "tests").as_posix()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            marks: list[ast.expr] = []
            place = name
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                marks, place = node.decorator_list, f"{name}::{node.name}"
            elif isinstance(node, ast.Assign) and any(
                isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets
            ):
                marks = node.value.elts if isinstance(node.value, ast.List) else [node.value]
            for mark in marks:
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.classic_only":
                    yield place, str(ast.literal_eval(mark.args[0]))


# Commands


def cli_page() -> str:
    lines = [
        "# Commands",
        "",
        NOTE.rstrip(),
        "",
        "Data goes to standard output, everything else to standard error. Colour and progress appear only on a",
        "terminal. The exit codes are the same everywhere:",
        "",
        "| exit code | meaning |",
        "| --- | --- |",
        *(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()),
    ]
    command = root_command()
    if command is None:
        return "\n".join([*lines, "", "The commands are not in this checkout yet."]) + "\n"
    found = list(commands(command))
    shared = {p.name: p for _, one in found for p in parameters(one) if _is_common(p)}
    lines += ["", "## Options of all commands", "", *_parameter_table([*shared.values()]), ""]
    lines += [
        "`--project` and `--target` belong to the commands that work on a project. Before the command's name",
        "stand: " + ", ".join(f"`{p.opts[0]}`" for p in parameters(command)) + ".",
    ]
    for name, one in found:
        lines += ["", f"## lakewright {name}", "", *_about(one), "```console", _usage(name, one), "```", ""]
        lines += _parameter_table([p for p in parameters(one) if not _is_common(p)])
        if one.epilog:
            lines += ["", *_example(one.epilog)]
    text = "\n".join(lines) + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


def root_command() -> Any:
    """The command line as Click sees it, or None where it is not there yet."""
    if importlib.util.find_spec("lakewright.cli.main") is None:
        return None
    import typer.main

    from lakewright.cli.main import app

    return typer.main.get_command(app)


def commands(group: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every command that is no group, with its full name, in the order in which help shows them."""
    # By Click's own two questions: the list may be lazy, and `group.commands` then holds only a part of it.
    for name in group.list_commands(None):
        one = group.get_command(None, name)
        if one.hidden:
            continue
        if hasattr(one, "list_commands"):
            yield from commands(one, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", one


def parameters(command: Any) -> list[Any]:
    """The arguments and options that help shows, but for those that every Typer program has."""
    own = [p for p in command.params if not getattr(p, "hidden", False)]
    return [p for p in own if p.name not in ("help", "install_completion", "show_completion")]


def _usage(name: str, command: Any) -> str:
    words = ["$ lakewright", name]
    shown = parameters(command)
    if any(p.param_type_name == "option" for p in shown):
        words.append("[OPTIONS]")
    for p in shown:
        if p.param_type_name == "argument":
            word = (p.metavar or p.name.upper()) + ("..." if p.nargs == -1 else "")
            words.append(word if p.required or word.startswith("[") else f"[{word}]")
    return " ".join(words)


def _is_common(parameter: Any) -> bool:
    return getattr(parameter, "rich_help_panel", None) == "Common options"


def _parameter_table(shown_parameters: list[Any]) -> list[str]:
    rows = []
    for p in shown_parameters:
        names = ", ".join(f"`{name}`" for name in [*p.opts, *p.secondary_opts])
        if p.param_type_name == "argument":
            names = f"`{(p.metavar or p.name.upper()).strip('[]')}`"
        text = " ".join((getattr(p, "help", None) or "").split()).replace("|", "\\|")
        shown = not (p.default in (None, False, "", (), []) or callable(p.default))
        rows.append(f"| {names} | {text} | {f'`{p.default}`' if shown else ''} |")
    return ["| argument or option | meaning | default |", "| --- | --- | --- |", *rows] if rows else []


def _about(command: Any) -> list[str]:
    return [*_plain(command.help or ""), ""]


def _example(text: str) -> list[str]:
    """The line at the end of a command's help, as something to copy."""
    first, _, command = " ".join(_plain(text)).partition("Example: ")
    return [first.strip(), "```console", f"$ {command}", "```"] if command else [first]


def _plain(text: str) -> list[str]:
    """Help text as Markdown: Click's own marks and Rich's markup taken out."""
    clean = inspect.cleandoc(text).replace("\b", "").replace("\f", "").replace("``", "`")
    return re.sub(r"\[/?(bold|dim|italic|cyan|green|yellow|red)\]", "", clean).splitlines()


def _refuse_difference(what: str, known: set[str], described: set[str]) -> None:
    if known != described:
        raise SystemExit(
            f"tools/make_docs.py: {what} has keys without a text: {sorted(known - described)}; "
            f"texts without a key: {sorted(described - known)}."
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a page differs")
    check = parser.parse_args().check
    different = 0
    for file, text in pages().items():
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        different += 1
        sys.stderr.write(f"{'differs' if check else 'wrote'}: {file.relative_to(ROOT)}\n")
        if not check:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    if check and different:
        sys.stderr.write("Run: python tools/make_docs.py\n")
    return 1 if check and different else 0


if __name__ == "__main__":
    sys.exit(main())
