"""Programs of flax: a linen transformer with dropout, a ResNet with batch norm, an nnx MLP."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.training import train_state

from tests.corpus.case import Case, cross_entropy, ids, key, shape


class _Layer(nn.Module):
    heads: int
    hidden: int

    @nn.compact
    def __call__(self, x):
        mask = nn.make_causal_mask(jnp.ones(x.shape[:2]))
        y = nn.MultiHeadDotProductAttention(self.heads, dropout_rate=0.1, deterministic=False)(
            nn.LayerNorm()(x), mask=mask
        )
        x = x + nn.Dropout(0.1, deterministic=False)(y)
        y = nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(self.hidden)(nn.LayerNorm()(x))))
        return x + nn.Dropout(0.1, deterministic=False)(y)


class _Transformer(nn.Module):
    vocab: int = 48
    width: int = 32
    layers: int = 1

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(self.vocab, self.width)
        x = embed(tokens) + self.param("position", nn.initializers.normal(), (tokens.shape[1], self.width))
        for _ in range(self.layers):
            x = _Layer(4, 2 * self.width)(x)
        return embed.attend(nn.LayerNorm()(x))


def transformer():
    """Linen, dropout by a folded key, AdamW with warm-up in a `TrainState`."""
    model = _Transformer()
    tokens = ids(8, 9)

    def create(seed):
        params = model.init({"params": seed, "dropout": seed}, jnp.zeros((8, 8), jnp.int32))["params"]
        schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 10, 100)
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(schedule))
        return train_state.TrainState.create(apply_fn=model.apply, params=params, tx=optimizer)

    def step(state, tokens, seed):
        rngs = {"dropout": jax.random.fold_in(seed, state.step)}

        def loss(params):
            return cross_entropy(state.apply_fn({"params": params}, tokens[:, :-1], rngs=rngs), tokens[:, 1:])

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), {"loss": value}

    return Case(step, (jax.eval_shape(create, jax.random.key(0)), tokens, key()))


class _ResNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(8, (3, 3))(x)))
        x = nn.max_pool(x, (2, 2), strides=(2, 2))
        y = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(16, (3, 3), strides=(2, 2))(x)))
        y = nn.BatchNorm(use_running_average=False)(nn.Conv(16, (3, 3))(y))
        x = nn.relu(y + nn.Conv(16, (1, 1), strides=(2, 2))(x))
        return nn.Dense(10)(x.mean((1, 2)))


class _NormState(train_state.TrainState):
    batch_stats: dict


def resnet():
    """Convolutions, a strided residual block, batch norm whose statistics are state, Nesterov momentum."""
    model = _ResNet()

    def create(seed):
        variables = model.init(seed, jnp.zeros((1, 16, 16, 3)))
        return _NormState.create(
            apply_fn=model.apply,
            params=variables["params"],
            batch_stats=variables["batch_stats"],
            tx=optax.sgd(0.1, momentum=0.9, nesterov=True),
        )

    def step(state, batch):
        def loss(params):
            logits, new = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats}, batch["image"], mutable=["batch_stats"]
            )
            return cross_entropy(logits, batch["label"]), (new, logits)

        (value, (new, logits)), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        state = state.apply_gradients(grads=grads, batch_stats=new["batch_stats"])
        return state, {"loss": value, "accuracy": jnp.mean(jnp.argmax(logits, -1) == batch["label"])}

    return Case(step, (jax.eval_shape(create, jax.random.key(0)), {"image": shape(8, 16, 16, 3), "label": ids(8)}))


class _Net(nnx.Module):
    def __init__(self, rngs):
        self.first = nnx.Linear(32, 64, rngs=rngs)
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.last = nnx.Linear(64, 8, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.norm(self.first(x))))


def nnx_mlp():
    """An nnx module and its optimizer, split outside the step and merged inside."""

    def create():
        model = _Net(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)

    graph, _ = nnx.split(nnx.eval_shape(create))

    def step(state, x, y):
        model, optimizer = nnx.merge(graph, state)
        value, grads = nnx.value_and_grad(lambda m: cross_entropy(m(x), y))(model)
        optimizer.update(model, grads)
        return nnx.state((model, optimizer)), value

    return Case(step, (jax.eval_shape(lambda: nnx.split(create())[1]), shape(8, 32), ids(8)))
