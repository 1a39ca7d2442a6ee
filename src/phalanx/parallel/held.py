"""A bucket's gradients where autograd has left them: what a rank adds up itself is never copied."""

from collections.abc import Container, Mapping

import torch

from phalanx.buffers import Array
from phalanx.parallel.flat import Bucket


class Held:
    """The gradients of a bucket by entry, as one piece that can be asked for its cuts."""

    def __init__(self, bucket: Bucket, gradients: Mapping[int, torch.Tensor]) -> None:
        self._bucket = bucket
        self._flat: dict[int, Array] = {
            entry: gradient.detach().reshape(-1).numpy() for entry, gradient in gradients.items()
        }

    def __getitem__(self, cut: slice) -> Array:
        entry, start = self._bucket.origins[cut.start]
        return self._flat[entry][start : start + cut.stop - cut.start]

    def show(self, out: Array, own: Container[int]) -> None:
        """Copy all cuts but those with the numbers ``own`` to their places in ``out``."""
        for number, cut in enumerate(self._bucket.cuts):
            if number not in own:
                out[cut] = self[cut]
