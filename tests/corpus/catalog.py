"""Name → program."""

import functools

from tests.corpus import attention, control, equinox_programs, flax_programs, haiku_programs, plain, unusual
from tests.corpus.optimizers import OPTIMIZERS, optimized

PROGRAMS = {
    **{
        f.__name__: f
        for f in (
            plain.mlp,
            plain.state_only,
            plain.mixed_leaves,
            plain.odd_results,
            plain.lstm,
            plain.bidirectional,
            plain.remat,
            plain.accumulation,
            plain.accumulation_by_index,
            plain.mixed_precision,
            control.branches,
            control.gradient_through_cond,
            control.loops,
            control.segments,
            attention.grouped_query,
            unusual.contrastive,
            unusual.experts,
            unusual.state_space,
            unusual.augmentation,
            unusual.actor_critic,
            unusual.distillation,
            unusual.stacked,
        )
    },
    "flax transformer": flax_programs.transformer,
    "flax resnet": flax_programs.resnet,
    "nnx mlp": flax_programs.nnx_mlp,
    "haiku resnet": haiku_programs.resnet,
    "haiku lstm": haiku_programs.lstm,
    "equinox mlp": equinox_programs.mlp,
    "equinox cnn": equinox_programs.cnn,
}
OPTIMIZED = {name: functools.partial(optimized, name) for name in OPTIMIZERS}
