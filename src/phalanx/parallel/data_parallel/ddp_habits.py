"""What scripts written for torch's DistributedDataParallel bring along: its arguments, and names with a prefix."""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from typing import Any

from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from phalanx.errors import ConfigError

_PREFIX = "module."
_IGNORED = (
    "device_ids",
    "output_device",
    "dim",
    "broadcast_buffers",
    "init_sync",
    "bucket_cap_mb",
    "find_unused_parameters",
    "check_reduction",
    "gradient_as_bucket_view",
    "static_graph",
    "skip_all_reduce_unused_params",
)


def check_ignored(names: Collection[str]) -> None:
    """Raise ConfigError if an argument is none of those of DistributedDataParallel that make no difference here."""
    for name in names:
        if name not in _IGNORED:
            words = f"DataParallel has no argument {name}, and it would make a difference"
            raise ConfigError(f"{words}: leave it out (of torch's, {', '.join(_IGNORED)} are ignored)")


def without_prefix(state: Mapping[str, Any], own: Collection[str]) -> Mapping[str, Any]:  # Any: tensors
    """Return a state with the module's own names, also if they were saved with ``module.`` in front, as DDP does."""
    if not state or any(name in own or not name.startswith(_PREFIX) for name in state):
        return state
    found: Any = OrderedDict(state)  # Any: torch hangs the versions of modules on it
    if hasattr(state, "_metadata"):
        found._metadata = OrderedDict(state._metadata)  # noqa: SLF001 - there is no public way
    consume_prefix_in_state_dict_if_present(found, _PREFIX)
    renamed: Mapping[str, Any] = found
    return renamed
