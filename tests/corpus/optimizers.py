"""Every optimizer of optax on one small MLP."""

import jax.numpy as jnp
import optax
from optax import contrib

from tests.corpus.case import cross_entropy, ids, shape, training

OPTIMIZERS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "nesterov": lambda: optax.sgd(optax.exponential_decay(0.1, 10, 0.9), momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-2),
    "adamw": lambda: optax.adamw(1e-2),
    "adamax": lambda: optax.adamax(1e-2),
    "amsgrad": lambda: optax.amsgrad(1e-2),
    "nadam": lambda: optax.nadam(1e-2),
    "radam": lambda: optax.radam(1e-2),
    "adan": lambda: optax.adan(1e-2),
    "adabelief": lambda: optax.adabelief(1e-2),
    "lion": lambda: optax.lion(1e-3),
    "rmsprop": lambda: optax.rmsprop(1e-2, momentum=0.9, centered=True),
    "adagrad": lambda: optax.adagrad(1e-2),
    "adadelta": lambda: optax.adadelta(1e-1),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=8),
    "lamb": lambda: optax.lamb(1e-2),
    "lars": lambda: optax.lars(1e-1),
    "sm3": lambda: optax.sm3(1e-2),
    "novograd": lambda: optax.novograd(1e-2),
    "yogi": lambda: optax.yogi(1e-2),
    "fromage": lambda: optax.fromage(1e-2),
    "sign_sgd": lambda: optax.sign_sgd(1e-3),
    "rprop": lambda: optax.rprop(1e-3),
    "noisy_sgd": lambda: optax.noisy_sgd(1e-2, key=0),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2)),
    "clipped blocks": lambda: optax.chain(optax.clip_by_block_rms(0.1), optax.adaptive_grad_clip(0.01), optax.sgd(0.1)),
    "averaged": lambda: optax.chain(optax.adam(1e-2), optax.ema(0.9)),
    "lookahead of steps": lambda: optax.MultiSteps(optax.adam(1e-2), 2),
    "finite": lambda: optax.apply_if_finite(optax.adam(1e-2), 3),
    "groups": lambda: optax.multi_transform(
        {"a": optax.adam(1e-2), "b": optax.sgd(0.1)}, {"w1": "a", "b1": "b", "w2": "b", "b2": "a"}
    ),
    "injected": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=1e-2),
    "muon": lambda: contrib.muon(1e-2),
    "schedule free": lambda: contrib.schedule_free_adamw(1e-2),
    "prodigy": lambda: contrib.prodigy(1.0),
}
QUICK = ("momentum", "adamw", "lion", "adafactor", "lamb", "clipped", "novograd")


def optimized(name):
    """A two-layer MLP trained by one of `OPTIMIZERS`."""

    def loss(params, x, y):
        h = jnp.tanh(x @ params["w1"] + params["b1"])
        return cross_entropy(h @ params["w2"] + params["b2"], y)

    params = {"w1": shape(32, 64), "b1": shape(64), "w2": shape(64, 8), "b2": shape(8)}
    return training(loss, params, shape(8, 32), ids(8), optimizer=OPTIMIZERS[name]())
