"""Sparse tensors, which DDP uses for the gradients of sparse embeddings."""

from collections.abc import Sequence

import torch

from phalanx.buffers import ReduceOp
from phalanx.errors import ConfigError
from phalanx.group import Group
from phalanx.torch.tensors import TorchReduction, as_array


def add_sparse(
    group: Group, tensors: Sequence[torch.Tensor], reduction: TorchReduction, timeout_s: float | None
) -> None:
    """Replace each sparse tensor by the sum over all ranks. Only their indices and values are exchanged."""
    if reduction.op is not ReduceOp.SUM or reduction.factor is not None:
        raise ConfigError(f"sparse tensors can only be added up, not reduced by {reduction.op.label}: call to_dense()")
    for tensor in tensors:
        own = tensor.coalesce()
        indices, values = own.indices().t().contiguous(), own.values().contiguous()
        rows = as_array(indices).reshape(indices.shape)
        lines = as_array(values).reshape(values.shape[0], -1)
        all_rows = group.all_gather_unequal(rows, timeout_s=timeout_s)
        all_lines = group.all_gather_unequal(lines, timeout_s=timeout_s)
        parts = []
        for found, line in zip(all_rows, all_lines, strict=True):
            value = torch.empty((len(found), *values.shape[1:]), dtype=values.dtype)
            as_array(value)[:] = line.reshape(-1)
            parts.append(torch.sparse_coo_tensor(torch.from_numpy(found).t(), value, tensor.shape))
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        tensor.copy_(total.coalesce())
