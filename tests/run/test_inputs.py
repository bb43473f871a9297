"""Arguments that a proof makes up."""

import numpy as np
import pytest

from shardwright.program.ir import Aval, Leaf, Role
from shardwright.run.inputs import generated


@pytest.mark.parametrize(("dims", "fan_in"), [((256, 1024), 256), ((4, 256, 8, 32), 256), ((4, 8, 32, 256), 256)])
def test_made_up_weights_neither_saturate_nor_vanish(dims, fan_in):
    leaf = Leaf("w", Aval(dims, np.dtype(np.float32)), Role.PARAMETER)
    w = generated(leaf, np.random.default_rng(0), carried=True, values=None)
    assert np.std(w) == pytest.approx(1 / np.sqrt(fan_in), rel=0.02)
