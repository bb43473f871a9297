import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shardwright.train import text, transformer

TINY = transformer.Config(width=16, layers=2, heads=2, hidden=32, sequence=16, warmup_steps=2, num_steps=40)
# Compiled once a shape: run operation by operation, each of the tests below would take seconds.
STEP = jax.jit(transformer.make_train_step(TINY))
EVALUATE = transformer.make_evaluate(TINY)
LOGITS = jax.jit(lambda params, tokens: transformer.logits(params, tokens, TINY))
SOURCE = np.frombuffer(b"the quick brown fox jumps over the lazy dog. " * 20, np.uint8)


def batches(num, seed=0):
    return list(itertools.islice(text.batches(SOURCE, 8, TINY.sequence, seed), num))


@pytest.fixture(scope="module")
def state():
    return jax.jit(lambda key: transformer.init_state(key, TINY))(jax.random.key(0))


@pytest.fixture(scope="module")
def trained(state):
    losses = []
    for batch in batches(40):
        state, metrics = STEP(state, batch)
        losses.append(float(metrics["loss"]))
    assert STEP._cache_size() == 1
    return state, losses


def test_loss_falls_on_one_device(trained):
    _, losses = trained
    assert losses[0] == pytest.approx(math.log(256), abs=0.5)
    assert losses[-1] < losses[0] - 1.5


def test_evaluate_is_the_loss_that_the_step_reports(state):
    batch = batches(1)[0]
    _, metrics = STEP(state, batch)
    np.testing.assert_allclose(EVALUATE(state["params"], batch), metrics["loss"], rtol=1e-6)


def test_loss_is_optax_cross_entropy(state):
    batch = batches(1)[0]
    scores = LOGITS(state["params"], batch[:, :-1])
    wanted = optax.softmax_cross_entropy_with_integer_labels(scores, batch[:, 1:]).mean()
    np.testing.assert_allclose(EVALUATE(state["params"], batch), wanted, rtol=1e-5)


def test_no_position_sees_what_follows(state):
    tokens = jnp.asarray(batches(1)[0][:1, :-1])
    changed = tokens.at[0, 9].set((tokens[0, 9] + 1) % 256)
    a, b = (LOGITS(state["params"], t)[0] for t in (tokens, changed))
    np.testing.assert_allclose(a[:9], b[:9], atol=1e-6)
    assert not np.allclose(a[9:], b[9:], atol=1e-6)


def test_rotation_depends_on_distance_alone():
    head, size = 8, 12
    q, k = (jax.random.normal(jax.random.key(i), (head,)) for i in range(2))
    rotation = transformer._rotation(size, head)
    rows = [transformer._rotate(jnp.broadcast_to(x, (1, size, 1, head)), rotation)[0, :, 0] for x in (q, k)]
    scores = rows[0] @ rows[1].T
    for distance in range(size):
        along = jnp.diagonal(scores, -distance)
        np.testing.assert_allclose(along, along[0], atol=1e-5)
    np.testing.assert_allclose(scores[0, 0], q @ k, rtol=1e-5)


def test_every_parameter_is_trained_and_scales_do_not_decay(state, trained):
    fresh, after = state["params"], trained[0]["params"]
    assert all(bool(jnp.any(after[n] != fresh[n])) for n in fresh)
    assert transformer._decays(fresh) == {n: fresh[n].ndim > 2 or n == "embedding" for n in fresh}


def test_sample_is_greedy_at_temperature_zero_beyond_the_context(trained):
    params, prompt = trained[0]["params"], jnp.asarray(SOURCE[:4], jnp.int32)
    written = transformer.make_sample(TINY, 20, 0.0)(params, prompt, jax.random.key(0))
    assert written.shape == (24,) and written.dtype == jnp.int32
    np.testing.assert_array_equal(written[:4], prompt)
    for end in (4, 15, 16, 17, 23):  # a window that is not filled, one that is, and some that have moved on
        context = written[max(0, end - TINY.sequence) : end]
        padded = jnp.zeros((1, TINY.sequence), jnp.int32).at[0, : context.size].set(context)
        scores = LOGITS(params, padded)[0, context.size - 1]
        assert int(written[end]) == int(scores.argmax())


def test_sample_follows_its_key(trained):
    sample = transformer.make_sample(TINY, 20, 1.0)
    prompt = jnp.asarray(SOURCE[:4], jnp.int32)
    a, again, b = (sample(trained[0]["params"], prompt, jax.random.key(i)) for i in (0, 0, 1))
    np.testing.assert_array_equal(a, again)
    assert not np.array_equal(a, b)


def test_learning_rate_climbs_and_falls_by_a_cosine_to_a_tenth():
    config = transformer.Config(learning_rate=1.0, warmup_steps=10, num_steps=110)
    counts = np.array([0, 4, 9, 10, 60, 110, 500])
    rates = [float(transformer._learning_rate(jnp.int32(n), config)) for n in counts]
    np.testing.assert_allclose(rates, [0.1, 0.5, 1.0, 1.0, 0.55, 0.1, 0.1], rtol=1e-6)
    short = transformer.Config(learning_rate=1.0, warmup_steps=0, num_steps=1)
    assert float(transformer._learning_rate(jnp.int32(0), short)) == 1.0


def test_heads_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="multiple of twice the heads"):
        transformer.Config(width=16, heads=3)
