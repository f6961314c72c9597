"""Run parameters: what a run may be told by name, and which values are known. Checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakewright.errors import ConfigurationError, UnknownNameError, did_you_mean

__all__ = ["Parameter", "as_parameter", "check_parameters", "parse_parameters"]


@dataclass(frozen=True, slots=True)
class Parameter:
    """The values that a parameter may have; without a default a run must be given one."""

    values: tuple[str, ...]
    default: str | None = None

    def __post_init__(self) -> None:
        given = () if isinstance(self.values, str) else tuple(self.values)
        if not given or not all(isinstance(value, str) and value for value in given):
            raise ConfigurationError(f"Parameter: values is a list of words, not {self.values!r}.")
        object.__setattr__(self, "values", given)
        if self.default is not None and self.default not in given:
            raise ConfigurationError(f"Parameter: the default '{self.default}' is none of {', '.join(given)}.")


def as_parameter(name: str, given: Parameter | Sequence[str]) -> Parameter:
    """A parameter as a pipeline declares it: as such, or as the list of its values."""
    if not name.isidentifier():
        raise ConfigurationError(f"'{name}' is no name for a parameter: letters, digits and _.")
    return given if isinstance(given, Parameter) else Parameter(tuple(given) if isinstance(given, list | tuple) else ())


def parse_parameters(texts: Sequence[str]) -> dict[str, str]:
    """What ``--param name=value`` gives.

    >>> parse_parameters(["output_type=delta"])
    {'output_type': 'delta'}
    """
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ConfigurationError(f"'{text}' is no parameter.", hint="Write it as --param output_type=delta.")
        if found.setdefault(name, value) != value:
            raise ConfigurationError(f"The parameter '{name}' is given twice, as {found[name]} and as {value}.")
    return found


def check_parameters(declared: Mapping[str, Parameter], given: Mapping[str, str], *, needed: bool = True) -> None:
    """Refuse what no pipeline declares, a value that is not known, and, if ``needed``, one that is missing."""
    for name, value in given.items():
        if name not in declared:
            raise UnknownNameError("parameter", name, declared)
        if value not in declared[name].values:
            raise ConfigurationError(
                f"The parameter '{name}' is {_listed(declared[name])}, not '{value}'. Nothing was started.",
                hint=did_you_mean(value, declared[name].values),
            )
    for name, parameter in declared.items() if needed else ():
        if name not in given and parameter.default is None:
            raise ConfigurationError(
                f"The parameter '{name}' is missing: it is {_listed(parameter)}. Nothing was started.",
                hint=f"Add --param {name}={parameter.values[0]}.",
            )


def _listed(parameter: Parameter) -> str:
    return " or ".join(filter(None, (", ".join(parameter.values[:-1]), parameter.values[-1])))
