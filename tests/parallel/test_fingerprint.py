"""Fingerprints: equal for equal bits wherever they lie, and different if one bit is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.parallel.reduction.fingerprint import fingerprints

TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32, torch.uint8]
LENGTHS = [1, 2, 3, 7, 8, 4096, 8192, 8193, 16_385, 40_003]


def sample(length, dtype):
    return torch.randint(0, 100, (length,), generator=torch.Generator().manual_seed(length)).to(dtype)


@settings(deadline=None)
@given(st.sampled_from(LENGTHS), st.sampled_from(TYPES), st.data())
def test_any_flipped_bit_shows(length, dtype, data):
    tensor = sample(length, dtype)
    before = fingerprints([tensor])
    octets = tensor.view(torch.uint8)
    place = data.draw(st.integers(0, len(octets) - 1))

    octets[place] ^= 1 << data.draw(st.integers(0, 7))

    assert fingerprints([tensor]) != before
    assert before[0] < 2**53


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_the_place_in_memory_does_not_matter(dtype):
    for length in LENGTHS:
        tensor = sample(length, dtype)
        shifted = torch.cat([tensor[:1], tensor])[1:]
        strided = torch.stack([tensor, tensor], 1)[:, 0]

        assert fingerprints([tensor, shifted, strided]) == fingerprints([tensor]) * 3


def test_rows_that_change_places_show():
    rows = torch.randn(4, 8192)

    assert fingerprints([rows]) != fingerprints([rows.flip(0)])


def test_tensors_without_elements_are_equal():
    assert len(set(fingerprints([torch.empty(0), torch.empty(0, 3), torch.tensor(())]))) == 1
    assert fingerprints([]) == []
