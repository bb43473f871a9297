"""Small training steps, (state, batch…) → (state, loss), and plans for them, on which proofs are tested."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh

from shardwright.plan.decision import AxisPlan, Decision
from shardwright.program.capture import capture
from shardwright.program.ir import Program
from shardwright.rules.classes import Classes, find_classes

F32 = jnp.float32


def shape(*dims, dtype=F32):
    return jax.ShapeDtypeStruct(dims, dtype)


@dataclasses.dataclass(frozen=True)
class Traced:
    """A captured step with the step itself as a function of flat arguments."""

    program: Program
    classes: Classes
    flat_step: Callable

    def dim(self, leaf: str, dim: int) -> int:
        """The class of an argument's dim."""
        variables = dict(zip([x.name for x in self.program.inputs], self.program.block.invars, strict=True))
        return self.classes.of[variables[leaf]][dim]

    @property
    def made_up(self) -> list[None]:
        return [None] * len(self.program.inputs)


def trace(step, args, names) -> Traced:
    program = capture(step, args, {}, names=names, donated=["state"])

    def flat_step(*flat):
        positional, _ = jax.tree.unflatten(program.in_tree, flat)
        return jax.tree.leaves(step(*positional))

    return Traced(program, find_classes(program), flat_step)


def mesh_of(decision: Decision) -> Mesh:
    sizes = [a.size for a in decision.axes]
    devices = np.array(jax.devices()[: int(np.prod(sizes))]).reshape(sizes)
    return Mesh(devices, [a.axis for a in decision.axes], axis_types=(AxisType.Auto,) * len(sizes))


def one_axis(size: int, compute: Sequence[int], store: Sequence[int] = (), **more) -> Decision:
    return Decision((AxisPlan("x", size, tuple(compute), tuple(store)),), **more)


def _cross_entropy(logits, labels):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()


def _training(loss, optimizer):
    def step(state, *batch):
        params, slots = state
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, slots = optimizer.update(grads, slots, params)
        return (optax.apply_updates(params, updates), slots), value

    return step


def _state(params, optimizer):
    return params, jax.eval_shape(optimizer.init, params)


def mlp(batch=8, width=64, hidden=64, labels=10, optimizer=None) -> Traced:
    """Two layers with biases, softmax over ids, SGD with momentum."""
    optimizer = optimizer or optax.sgd(0.1, momentum=0.9)

    def loss(params, x, y):
        h = jnp.tanh(x @ params["w1"] + params["b1"])
        return _cross_entropy(h @ params["w2"] + params["b2"], y)

    params = {"w1": shape(width, hidden), "b1": shape(hidden), "w2": shape(hidden, labels), "b2": shape(labels)}
    args = (_state(params, optimizer), shape(batch, width), shape(batch, dtype=jnp.int32))
    return trace(_training(loss, optimizer), args, ["state", "x", "y"])


def _norm(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


def transformer(batch=4, vocab=64, width=64, heads=4, hidden=64, layers=2, sequence=8) -> Traced:
    """Causal attention and MLP in a scan over stacked layers, tied embedding, AdamW."""
    optimizer = optax.adamw(1e-3)
    size = width // heads

    def layer(x_BSD, w):
        y = _norm(x_BSD)
        q, k, v = (jnp.einsum("bsd,dhk->bshk", y, w[n]) for n in "qkv")
        score = jnp.einsum("bshk,bthk->bhst", q, k) * size**-0.5
        score = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((sequence, sequence), bool)), score, -1e9), -1)
        x_BSD = x_BSD + jnp.einsum("bhst,bthk,hkd->bsd", score, v, w["o"])
        return x_BSD + jax.nn.gelu(_norm(x_BSD) @ w["w1"]) @ w["w2"], None

    def loss(params, tokens):
        x, _ = jax.lax.scan(layer, params["emb"][tokens[:, :-1]], params["layers"])
        return _cross_entropy(_norm(x) @ params["emb"].T, tokens[:, 1:])

    stacked = {n: shape(layers, width, heads, size) for n in "qkv"} | {"o": shape(layers, heads, size, width)}
    stacked |= {"w1": shape(layers, width, hidden), "w2": shape(layers, hidden, width)}
    params = {"emb": shape(vocab, width), "layers": stacked}
    args = (_state(params, optimizer), shape(batch, sequence + 1, dtype=jnp.int32))
    return trace(_training(loss, optimizer), args, ["state", "tokens"])


def bfloat16_dropout(batch=8, width=64, hidden=64, labels=16) -> Traced:
    """Matrix products in bfloat16, dropout by a key, softmax in float32, SGD on bfloat16 parameters."""
    optimizer = optax.sgd(0.1)

    def loss(params, x, y, key):
        h = jax.nn.relu(x.astype(jnp.bfloat16) @ params["w1"])
        kept = jax.random.bernoulli(key, 0.9, h.shape)
        h = jnp.where(kept, h / 0.9, 0).astype(jnp.bfloat16)
        return _cross_entropy((h @ params["w2"]).astype(F32), y)

    params = {"w1": shape(width, hidden, dtype=jnp.bfloat16), "w2": shape(hidden, labels, dtype=jnp.bfloat16)}
    key = jax.eval_shape(lambda: jax.random.key(0))
    args = (_state(params, optimizer), shape(batch, width), shape(batch, dtype=jnp.int32), key)
    return trace(_training(loss, optimizer), args, ["state", "x", "y", "key"])


def lstm(batch=8, width=16, hidden=32, length=5) -> Traced:
    """An LSTM by scan, squared error of its last state, Adam."""
    optimizer = optax.adam(1e-2)

    def loss(params, x_BTD, y):
        def cell(carry, x):
            h, c = carry
            i, f, g, o = jnp.split(x @ params["wx"] + h @ params["wh"] + params["b"], 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        zero = jnp.zeros((x_BTD.shape[0], hidden), x_BTD.dtype)
        (h, _), _ = jax.lax.scan(cell, (zero, zero), x_BTD.transpose(1, 0, 2))
        return ((h @ params["out"] - y) ** 2).mean()

    params = {"wx": shape(width, 4 * hidden), "wh": shape(hidden, 4 * hidden), "b": shape(4 * hidden)}
    params["out"] = shape(hidden, 1)
    args = (_state(params, optimizer), shape(batch, length, width), shape(batch, 1))
    return trace(_training(loss, optimizer), args, ["state", "x", "y"])
