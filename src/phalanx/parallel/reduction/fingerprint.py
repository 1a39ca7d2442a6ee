"""Fingerprints of tensors: numbers that an f64 can carry, and that differ if a bit of the tensor does."""

import hashlib
from collections.abc import Iterator, Sequence

import torch

_ROW = 4096  # words: sums of shorter rows cost more to hash, and longer rows tell less about the order of words
_BITS = 53


def fingerprints(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Return a number of 53 bits for each tensor, which tells if a bit of the tensor differs, on any device.

    It is a hash of the sums of the tensor's 64-bit words, row by row. Adding up costs a tenth of hashing all words, and
    one flipped bit always changes a sum. It is no protection against somebody who wants two tensors to look alike.
    """
    found = [list(_row_sums(tensor.detach())) for tensor in tensors]
    sums = [each for parts in found for each in parts]
    if len({each.device for each in sums}) > 1:
        sums = [each.cpu() for each in sums]
    words = torch.cat(sums).cpu().numpy() if sums else None
    prints, end = [], 0
    for parts in found:
        start, end = end, end + sum(map(len, parts))
        prints.append(hash_words(words[start:end].tobytes()) if words is not None else 0)
    return prints


def hash_words(words: bytes) -> int:
    """Return a fingerprint of some bytes."""
    return int.from_bytes(hashlib.blake2b(words, digest_size=8).digest(), "big") >> 64 - _BITS


def _row_sums(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the sum of each row of 64-bit words, of the words after the last row, and the bytes after the last word."""
    flat = tensor.reshape(-1)
    if flat.stride(0) != 1 or flat.storage_offset() * flat.element_size() % 8:  # words lie at multiples of their size
        flat = flat.clone(memory_format=torch.contiguous_format)
    whole = flat.numel() * flat.element_size() // 8 * 8
    octets = flat.view(torch.uint8)
    words = octets[:whole].view(torch.int64)
    rows = len(words) // _ROW * _ROW
    if rows:
        yield words[:rows].view(-1, _ROW).sum(1)
    if rows < len(words):
        yield words[rows:].sum().view(1)
    if whole < len(octets):
        yield octets[whole:].to(torch.int64)
