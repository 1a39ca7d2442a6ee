"""Tensors as the group sees them: flat numpy arrays that share the tensor's memory."""

import torch

from phalanx.buffers import Array, DType, ReduceOp
from phalanx.errors import ConfigError

_REDUCIBLE = {
    torch.float64: DType.F64,
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.int64: DType.I64,
    torch.int32: DType.I32,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
    torch.bool: DType.BOOL,
}
_AS_NUMPY = frozenset(_REDUCIBLE) - {torch.bfloat16}

_Kind = torch.distributed.ReduceOp.RedOpType
_REDUCTIONS = {
    _Kind.SUM: ReduceOp.SUM,
    _Kind.AVG: ReduceOp.MEAN,
    _Kind.PRODUCT: ReduceOp.PRODUCT,
    _Kind.MIN: ReduceOp.MIN,
    _Kind.MAX: ReduceOp.MAX,
    _Kind.BAND: ReduceOp.BITWISE_AND,
    _Kind.BOR: ReduceOp.BITWISE_OR,
    _Kind.BXOR: ReduceOp.BITWISE_XOR,
    _Kind.PREMUL_SUM: ReduceOp.SUM,
}


def as_array(tensor: torch.Tensor) -> Array:
    """Return a flat array that shares the memory of a contiguous CPU tensor.

    Types that numpy or the group lacks are exchanged as bytes.
    """
    if tensor.dtype in _AS_NUMPY and tensor.dim() == 1 and not tensor.requires_grad:
        return tensor.numpy()  # type: ignore[no-any-return]  # each call of torch costs as much as a small exchange
    flat = tensor.detach().view(-1)
    if flat.dtype in _AS_NUMPY:
        return flat.numpy()  # type: ignore[no-any-return]  # torch is not type-checked
    if flat.dtype is torch.bfloat16:
        return flat.view(torch.uint16).numpy().view(DType.BF16.numpy)  # type: ignore[no-any-return]
    return flat.view(torch.uint8).numpy()  # type: ignore[no-any-return]


def find_reduction(asked: object) -> "TorchReduction":
    """Return the reduction for a ``torch.distributed.ReduceOp``, made before if it needs no factor."""
    return _KNOWN.get(getattr(asked, "op", asked)) or TorchReduction(asked)


class TorchReduction:
    """A ``torch.distributed.ReduceOp`` as the group knows it; ``factor`` multiplies inputs before they are added."""

    __slots__ = ("factor", "op")

    def __init__(self, asked: object) -> None:
        kind = getattr(asked, "op", asked)  # a ReduceOp has a kind, and a RedOpType is one
        self.op = _REDUCTIONS[kind]
        self.factor: float | torch.Tensor | None = asked.factor if kind == _Kind.PREMUL_SUM else None  # type: ignore[attr-defined]

    def check(self, tensor: torch.Tensor) -> None:
        """Raise ConfigError if tensors of this type cannot be reduced so."""
        dtype = _REDUCIBLE.get(tensor.dtype)
        if dtype is None:
            names = ", ".join(str(each).removeprefix("torch.") for each in _REDUCIBLE)
            raise ConfigError(f"the phalanx backend cannot reduce tensors of {tensor.dtype}: convert to one of {names}")
        if self.op.is_bitwise and dtype.is_float:
            raise ConfigError(f"floats have no bitwise {self.op.label}: view {tensor.dtype} as an integer type")

    def prepare(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor as it enters the sum."""
        if self.factor is None:
            return tensor
        if isinstance(self.factor, torch.Tensor):
            return tensor * self.factor.to(tensor.device)
        return tensor * self.factor


_KNOWN = {kind: TorchReduction(kind) for kind in _REDUCTIONS if kind != _Kind.PREMUL_SUM}
