"""Programs whose dims meet in unusual ways, and values of unusual kinds."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from tests.corpus.case import Case, cross_entropy, ids, key, shape, training


def contrastive(batch=8, width=32):
    """Two towers and a table of all pairs: the batch is both dims of one product."""

    def loss(params, image, text):
        a, b = (jnp.tanh(x @ params[n]) for x, n in ((image, "image"), (text, "text")))
        a, b = (x / jnp.sqrt((x**2).sum(-1, keepdims=True) + 1e-6) for x in (a, b))
        scores = a @ b.T * jnp.exp(params["scale"])
        labels = jnp.arange(batch)
        return (cross_entropy(scores, labels) + cross_entropy(scores.T, labels)) / 2

    params = {"image": shape(48, width), "text": shape(64, width), "scale": shape()}
    return training(loss, params, shape(batch, 48), shape(batch, 64))


def experts(tokens=32, width=32, hidden=32, experts=4, capacity=12):
    """Top-2 routing into experts of a fixed capacity by one-hot products, an auxiliary loss among the results."""
    optimizer = optax.adam(1e-2)

    def layer(params, x_TM):
        gates_TE = jax.nn.softmax(x_TM @ params["router"])
        top, chosen = jax.lax.top_k(gates_TE, 2)
        mask_T2E = jax.nn.one_hot(chosen, experts)
        place = jnp.cumsum(mask_T2E.reshape(-1, experts), 0).reshape(mask_T2E.shape) - 1
        inside = jnp.where(place < capacity, mask_T2E, 0)
        slot_T2EC = inside[..., None] * jax.nn.one_hot(place.astype(int), capacity)
        combine_TEC = (top[..., None, None] * slot_T2EC).sum(1)
        x_ECM = jnp.einsum("tec,tm->ecm", (combine_TEC > 0).astype(x_TM.dtype), x_TM)
        h_ECH = jax.nn.gelu(jnp.einsum("ecm,emh->ech", x_ECM, params["up"]))
        y_TM = jnp.einsum("tec,ech,ehm->tm", combine_TEC, h_ECH, params["down"])
        return y_TM, experts * (gates_TE.mean(0) * mask_T2E.mean((0, 1))).sum()

    def step(state, x, y):
        def loss(params):
            out, balance = layer(params, x)
            return ((out - y) ** 2).mean() + 0.01 * balance, balance

        params, slots = state
        (value, balance), grads = jax.value_and_grad(loss, has_aux=True)(params)
        updates, slots = optimizer.update(grads, slots)
        return (optax.apply_updates(params, updates), slots), {"balance": balance, "loss": value}

    params = {"router": shape(width, experts), "up": shape(experts, width, hidden)}
    params["down"] = shape(experts, hidden, width)
    return Case(step, ((params, jax.eval_shape(optimizer.init, params)), shape(tokens, width), shape(tokens, width)))


def state_space(batch=8, length=8, width=32, states=16):
    """A linear recurrence by an associative scan over time."""

    def loss(params, x_BTD, y_BTD):
        decay_BTN = jax.nn.sigmoid(x_BTD @ params["decay"])
        drive_BTN = x_BTD @ params["drive"]

        def combine(left, right):
            return left[0] * right[0], left[1] * right[0] + right[1]

        _, h_BTN = jax.lax.associative_scan(combine, (decay_BTN, drive_BTN), axis=1)
        return ((jnp.tanh(h_BTN) @ params["out"] - y_BTD) ** 2).mean()

    params = {"decay": shape(width, states), "drive": shape(width, states), "out": shape(states, width)}
    return training(loss, params, shape(batch, length, width), shape(batch, length, width))


def augmentation():
    """Bytes as images, cropped and flipped by a key an example, a table of constants that the step closes over."""
    table = np.sin(np.arange(36 * 32)).reshape(36, 32).astype(np.float32)
    mean = jnp.linspace(0.0, 1.0, 3)

    @jax.custom_vjp
    def clipped(x):
        return x

    clipped.defvjp(lambda x: (x, None), lambda _, g: (jnp.clip(g, -0.01, 0.01),))

    def one(image, seed):
        corner, flip = jax.random.split(seed)
        x, y = jax.random.randint(corner, (2,), 0, 3)
        image = jax.lax.dynamic_slice(image, (x, y, 0), (6, 6, 3))
        return jnp.where(jax.random.bernoulli(flip), image[:, ::-1], image)

    def loss(params, image, label, seed):
        seeds = jax.random.split(seed, image.shape[0])
        x = (jax.vmap(one)(image.astype(jnp.float32) / 255, seeds) - mean).reshape(image.shape[0], -1)
        h = clipped(jnp.tanh(x @ params["w1"]) * jnp.asarray(table).sum(0))
        return cross_entropy(h @ params["w2"], label)

    params = {"w1": shape(108, 32), "w2": shape(32, 10)}
    return training(loss, params, shape(8, 8, 8, 3, dtype=jnp.uint8), ids(8), key())


def actor_critic(steps=6, actors=8, features=16, actions=5):
    """Advantages by a reverse scan; the batch flattened, shuffled, cut into minibatches; an update for each by scan."""
    optimizer = optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-3))

    def apply(params, x):
        h = jnp.tanh(x @ params["body"])
        return h @ params["policy"], (h @ params["value"])[..., 0]

    def loss(params, batch):
        logits, value = apply(params, batch["seen"])
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["action"][:, None], 1)[:, 0]
        ratio = jnp.exp(chosen - batch["chosen"])
        gain = jnp.minimum(ratio * batch["gain"], jnp.clip(ratio, 0.8, 1.2) * batch["gain"])
        return ((value - batch["goal"]) ** 2).mean() - gain.mean()

    def step(state, seen_TAF, action_TA, reward_TA, done_TA, seed):
        params, slots = state
        logits, value = apply(params, seen_TAF)

        def back(carry, x):
            gain, following = carry
            reward, done, value = x
            gain = reward + 0.99 * following * (1 - done) - value + 0.95 * 0.99 * (1 - done) * gain
            return (gain, value), gain

        start = (jnp.zeros(actors), value[-1])
        _, gain = jax.lax.scan(back, start, (reward_TA, done_TA.astype(jnp.float32), value), reverse=True)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), action_TA[..., None], 2)[..., 0]
        batch = {"seen": seen_TAF, "action": action_TA, "chosen": chosen, "gain": gain, "goal": gain + value}
        order = jax.random.permutation(seed, steps * actors)
        batch = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[order].reshape(4, -1, *x.shape[2:]), batch)

        def turn(state, part):
            params, slots = state
            value, grads = jax.value_and_grad(loss)(params, part)
            updates, slots = optimizer.update(grads, slots)
            return (optax.apply_updates(params, updates), slots), value

        return jax.lax.scan(turn, (params, slots), batch)

    params = {"body": shape(features, 32), "policy": shape(32, actions), "value": shape(32, 1)}
    batch = shape(steps, actors, features), ids(steps, actors), shape(steps, actors), shape(steps, actors, dtype=bool)
    return Case(step, ((params, jax.eval_shape(optimizer.init, params)), *batch, key()))


def distillation():
    """A teacher that stays, a moving average of the student; predictions and raw key words among the results."""

    def apply(params, x):
        return jax.nn.gelu(x @ params["w1"]) @ params["w2"]

    def step(state, teacher, x, seed):
        student, average = state
        noise, seed = jax.random.split(seed)

        def loss(params):
            seen = x + 0.1 * jax.random.normal(noise, x.shape)
            told = jax.nn.softmax(apply(teacher, x))
            return -(told * jax.nn.log_softmax(apply(params, seen))).sum(-1).mean()

        value, grads = jax.value_and_grad(loss)(student)
        student = jax.tree.map(lambda p, g: p - 0.1 * g, student, grads)
        average = jax.tree.map(lambda a, p: 0.9 * a + 0.1 * p, average, student)
        return (student, average), value, apply(average, x), seed

    params = {"w1": shape(32, 64), "w2": shape(64, 16)}
    seed = shape(2, dtype=jnp.uint32)
    return Case(step, ((params, params), params, shape(8, 32), seed))


def stacked(layers=3, batch=8, width=32, hidden=64):
    """Layers stacked and scanned, each recomputed; weights in bfloat16, masters in float32 in the state."""
    optimizer = optax.adam(1e-2)

    def layer(x, w):
        h = jax.nn.silu(x @ w["gate"]) * (x @ w["up"])
        return x + (h @ w["down"]).astype(x.dtype), (x.astype(jnp.float32) ** 2).mean()

    def step(state, x, y):
        masters, slots = state

        def loss(weights):
            out, norms = jax.lax.scan(jax.checkpoint(layer), x.astype(jnp.bfloat16), weights)
            return ((out.astype(jnp.float32) - y) ** 2).mean(), norms

        weights = jax.tree.map(lambda p: p.astype(jnp.bfloat16), masters)
        (value, norms), grads = jax.value_and_grad(loss, has_aux=True)(weights)
        grads = jax.tree.map(lambda g: g.astype(jnp.float32), grads)
        updates, slots = optimizer.update(grads, slots)
        return (optax.apply_updates(masters, updates), slots), (value, norms)

    params = {"gate": shape(layers, width, hidden), "up": shape(layers, width, hidden)}
    params["down"] = shape(layers, hidden, width)
    state = params, jax.eval_shape(optimizer.init, params)
    return Case(step, (state, shape(batch, width), shape(batch, width)))
