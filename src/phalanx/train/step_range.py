"""Ranges of steps as people write them."""

import re

from phalanx.errors import ConfigError


def parse_steps(text: str, name: str) -> range:
    """Return the steps that "100:110" means: from 100 on, up to but not including 110. ``name`` is what was set."""
    found = re.fullmatch(r"(\d{1,18}):(\d{1,18})", text)
    if not found or int(found[1]) >= int(found[2]):
        raise ConfigError(f"{name} is the first step and the end, as in 100:110, not {text!r}")
    return range(int(found[1]), int(found[2]))
