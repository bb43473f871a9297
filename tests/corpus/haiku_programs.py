"""Programs of haiku: a small ResNet with batch norm, an LSTM language model."""

import haiku as hk
import jax
import jax.numpy as jnp
import optax

from tests.corpus.case import Case, cross_entropy, ids, key, shape


def resnet():
    """Blocks of haiku's own ResNet; parameters, statistics and slots are three arguments and three results."""

    def forward(image):
        x = hk.Conv2D(8, 3, with_bias=False)(image)
        block = hk.nets.ResNet.BlockGroup(
            16, 1, 2, {"create_scale": True, "create_offset": True, "decay_rate": 0.9}, False, False, True
        )
        return hk.Linear(10)(block(x, is_training=True, test_local_stats=False).mean((1, 2)))

    model = hk.transform_with_state(forward)
    optimizer = optax.adam(1e-3)

    def step(params, stats, slots, image, label):
        def loss(params):
            logits, new = model.apply(params, stats, None, image)
            return cross_entropy(logits, label), new

        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, slots = optimizer.update(grads, slots)
        return optax.apply_updates(params, updates), stats, slots, value

    image, label = shape(8, 8, 8, 3), ids(8)
    params, stats = jax.eval_shape(model.init, jax.random.key(0), image)
    return Case(step, (params, stats, jax.eval_shape(optimizer.init, params), image, label), (0, 1, 2))


def lstm():
    """Two LSTM layers unrolled over time by haiku's scan, dropout between them, gradients clipped."""

    def forward(tokens):
        core = hk.DeepRNN([hk.LSTM(32), lambda x: hk.dropout(hk.next_rng_key(), 0.2, x), hk.LSTM(32)])
        x = hk.Embed(40, 32)(tokens.T)
        out, _ = hk.dynamic_unroll(core, x, core.initial_state(tokens.shape[0]))
        return hk.Linear(40)(out).swapaxes(0, 1)

    model = hk.transform(forward)
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.rmsprop(1e-2))

    def step(state, tokens, seed):
        params, slots = state
        value, grads = jax.value_and_grad(lambda p: cross_entropy(model.apply(p, seed, tokens[:, :-1]), tokens[:, 1:]))(
            params
        )
        updates, slots = optimizer.update(grads, slots)
        return (optax.apply_updates(params, updates), slots), jnp.exp(value)

    params = jax.eval_shape(model.init, jax.random.key(0), ids(8, 6))
    return Case(step, ((params, jax.eval_shape(optimizer.init, params)), ids(8, 7), key()))
