"""A bucket's gradients can be asked for their cuts, and show what others add up."""

import numpy as np
import torch

from phalanx.parallel.flat import CUT, Entry, lay_out
from phalanx.parallel.held import Held

SIZES = [5, CUT + 3, 70]


def make():
    (bucket,) = lay_out([Entry(str(size), size) for size in SIZES], 10 * CUT).buckets
    gradients = {number: torch.randn(size, 1) for number, size in enumerate(SIZES)}
    whole = np.zeros(bucket.length, np.float32)
    for entry, place in zip(bucket.entries, bucket.places, strict=True):
        whole[place] = gradients[entry].reshape(-1).numpy()
    return bucket, Held(bucket, gradients), whole


def test_every_cut_is_found_where_it_is():
    bucket, held, whole = make()

    for cut in bucket.cuts:
        np.testing.assert_array_equal(held[cut], whole[cut])


def test_what_is_changed_in_a_cut_is_changed_in_the_gradient():
    gradient = torch.zeros(3, 2)
    (bucket,) = lay_out([Entry("w", 6)], 6).buckets

    Held(bucket, {0: gradient})[slice(0, 6)][:] = 7

    assert gradient.tolist() == [[7, 7], [7, 7], [7, 7]]


def test_all_cuts_but_the_own_are_shown():
    bucket, held, whole = make()
    shown = np.full(bucket.length, np.nan, np.float32)

    held.show(shown, range(1, 3))

    for number, cut in enumerate(bucket.cuts):
        if number in (1, 2):
            assert np.isnan(shown[cut]).all()
        else:
            np.testing.assert_array_equal(shown[cut], whole[cut])
