"""The demo's project folder: the blog platform's own files, and the generator of its data."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sys
from pathlib import Path
from types import ModuleType

from lakewright.errors import ConfigurationError

__all__ = ["load_generator", "load_part", "platform_folder", "prepare", "shown"]

_STATE = ".lakewright"
_MARK = "demo"
_SERVICES = "services"


def platform_folder() -> Path:
    """Where the blog platform's files are: in the repository, or beside the installed package."""
    here = Path(__file__).resolve().parent
    for root in (here / "_platforms", here.parents[1]):
        place = root / "platforms" / "blog"
        if (place / "lakewright.toml").exists():
            return place
    raise ConfigurationError(
        "The blog platform's files are not installed.", hint="Clone the repository and run `make demo`."
    )


def prepare(folder: Path, *, services: bool = False) -> Path:
    """Make the project anew; of an earlier one only its services stay, which may be running.

    With ``services`` two of its files are others: the settings, and the one that says where rows come from.
    """
    source, mark = platform_folder(), folder / _STATE / _MARK
    if folder.exists() and any(folder.iterdir()) and not (mark.exists() or (folder / "truth.json").exists()):
        raise ConfigurationError(
            f"{folder} has files that the demo did not make.", hint="Choose another place with --folder."
        )
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()  # first of all: a demo that is killed at any moment can be repeated
    for old in [*folder.iterdir(), *mark.parent.iterdir()]:
        if old == mark.parent or (old.parent == mark.parent and old.name in (_MARK, _SERVICES)):
            continue
        shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    shutil.copy(source / "lakewright.toml", folder)
    for part in ("pipelines", "contracts"):
        _copy(source / part, folder / part)
    if services:
        _copy(source / "services" / "project", folder)
    return folder.resolve()


def load_generator() -> ModuleType:
    """The platform's generator, which lies outside the package."""
    file = platform_folder() / "generate.py"
    spec = importlib.util.spec_from_file_location("lakewright_blog_generate", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def load_part(name: str) -> ModuleType:
    """Another module of the platform, such as ``services.producer``; the generator is loaded before."""
    return importlib.import_module(f"platforms.blog.{name}")


def shown(folder: Path) -> str:
    """A folder as somebody here would type it."""
    try:
        return str(folder.relative_to(Path.cwd()))
    except ValueError:
        return str(folder)


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
