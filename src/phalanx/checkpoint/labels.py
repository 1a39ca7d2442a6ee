"""Labels of an optimizer's state: which parameter a tensor belongs to, and which of its elements it covers."""

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from phalanx.errors import ConfigError


class Label(NamedTuple):
    """The name of a tensor of an optimizer's state: ``key`` of the parameter ``name``, or of a span of its elements."""

    name: str
    key: str
    span: tuple[int, int] | None = None

    def __str__(self) -> str:
        ending = "" if self.span is None else f"[{self.span[0]}:{self.span[1]}]"
        return f"{self.name}.{self.key}{ending}"


_SPAN = re.compile(r"(.*)\[(\d+):(\d+)\]", re.DOTALL)


def parse_label(text: str) -> Label:
    """Return the label that ``str`` has written."""
    matched = _SPAN.fullmatch(text)
    whole, span = (matched[1], (int(matched[2]), int(matched[3]))) if matched else (text, None)
    name, _, key = whole.rpartition(".")
    return Label(name, key, span)


class Found(NamedTuple):
    """Where some wanted elements are: ``source`` within the span with this ``number``, ``target`` within the wanted."""

    number: int
    source: slice
    target: slice


def locate(wanted: slice, spans: Sequence[tuple[int, int]], what: str) -> Iterator[Found]:
    """Yield where the ``wanted`` elements lie in the spans, in order; ConfigError, naming ``what``, if some do not."""
    at = wanted.start
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        start, stop = spans[number]
        end = min(stop, wanted.stop)
        if start <= at < end:
            yield Found(number, slice(at - start, end - start), slice(at - wanted.start, end - wanted.start))
            at = end
    if at < wanted.stop:
        raise ConfigError(f"elements {at} to {wanted.stop - 1} of {what} are missing: a shard is not there")
