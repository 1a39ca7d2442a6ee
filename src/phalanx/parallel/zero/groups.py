"""The parameters of an optimizer: their groups, a check that each is given once, and their names."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.parallel.data_parallel import DataParallel

Settings = dict[str, Any]  # Any: as the optimizer's class takes them


def settings_of(group: Mapping[str, Any]) -> Settings:
    """Return the settings of a group of parameters."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def list_groups(params: Iterable[Any]) -> list[dict[str, Any]]:
    """Return groups as torch's optimizers make them, from tensors, pairs of name and tensor, or groups of these."""
    if isinstance(params, torch.nn.Module):
        raise ConfigError("this is a model: pass its parameters, model.parameters()")
    given = list(params)
    groups = given if given and isinstance(given[0], dict) else [{"params": given}]
    found = []
    for group in groups:
        members = group["params"]
        listed = [members] if isinstance(members, torch.Tensor) else list(members)
        pairs = [each if isinstance(each, tuple) else (None, each) for each in listed]
        named = {"param_names": [name for name, _ in pairs]} if pairs and pairs[0][0] is not None else {}
        found.append({**settings_of(group), "params": [each for _, each in pairs], **named})
    if not any(group["params"] for group in found):
        raise ConfigError("there are no parameters to update: pass model.parameters()")
    return found


def check_once(groups: Iterable[Mapping[str, Any]]) -> None:
    """Raise ConfigError if a parameter is given twice."""
    seen: dict[int, str] = {}
    for number, group in enumerate(groups):
        for place, parameter in enumerate(group["params"]):
            if not isinstance(parameter, torch.Tensor):
                raise ConfigError(
                    f"parameter {place} of group {number} is {parameter!r}, and no tensor: pass parameters"
                )
            where = f"place {place} of group {number}"
            if id(parameter) in seen:
                raise ConfigError(f"a parameter is there twice, at {seen[id(parameter)]} and {where}: pass it once")
            seen[id(parameter)] = where


def find_homes(groups: Iterable[Mapping[str, Any]], group: Group) -> list[DataParallel]:
    """Return each ``DataParallel`` that averages some of these parameters; ConfigError if none averages one of them."""
    made = [each for each in group.companions if isinstance(each, DataParallel)]
    home_of = {id(parameter): home for home in made for parameter in home.module.parameters()}
    found: dict[int, DataParallel] = {}
    for parameter in (each for one in groups for each in one["params"] if each.requires_grad):
        home = home_of.get(id(parameter))
        if home is not None:
            found[id(home)] = home
        elif group.size > 1:  # alone there is nothing to average
            shape = list(parameter.shape)
            raise ConfigError(
                f"nobody in this group averages the gradient of the parameter of shape {shape}: wrap the "
                "model with DataParallel(model, group) first, and pass its parameters"
            )
    return list(found.values())


def find_defaults(make: Callable[..., torch.optim.Optimizer], groups: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the default settings of an optimizer of these groups; ConfigError if it refuses them.

    This makes an optimizer for one parameter of each shape at a time, since some optimizers allocate all state at once.
    """
    defaults: dict[str, Any] = {}
    for group in groups:
        for shape, kind, device in {(each.shape, each.dtype, each.device): None for each in group["params"]}:
            alike = torch.nn.Parameter(torch.zeros((), dtype=kind, device=device).expand(shape), requires_grad=False)
            try:
                defaults = make([{**settings_of(group), "params": [alike]}]).defaults
            except (TypeError, ValueError) as error:
                raise ConfigError(
                    f"the optimizer refuses its settings, or a parameter of shape {list(shape)}: {error}; change the "
                    "settings, or leave the parameter to another optimizer"
                ) from error
    return dict(defaults)


def describe(group: Mapping[str, Any]) -> str:
    """Return a group in words, for ranks to compare."""
    return f"a group of {len(group['params'])} with {settings_of(group)}"


def name_parameters(
    groups: Iterable[Mapping[str, Any]], homes: Iterable[DataParallel], known: Mapping[int, str]
) -> dict[int, str]:
    """Return the name of each parameter by its id: the model's name, else the one given with it, else its number.

    ``known`` are those of parameters that were there before; ConfigError if two have the same.
    """
    first = len(known)
    found: dict[int, str] = {}
    for group in groups:
        given = group.get("param_names") or [str(first + len(found) + at) for at in range(len(group["params"]))]
        found |= {id(parameter): name for parameter, name in zip(group["params"], given, strict=True)}
    for home in homes:
        found |= {id(each): name for name, each in home.module.named_parameters() if id(each) in found}
    for twice, count in Counter([*known.values(), *found.values()]).items():
        if count > 1:
            raise ConfigError(f"{count} parameters are called {twice}: give each model an optimizer of its own")
    return found
