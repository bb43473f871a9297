"""Steps for the command line, which takes FILE.py:NAME: NAME() returns the step and its arguments.

shardwright plan examples/program.py:large --cluster h100:2x8 --donate 0
shardwright prove examples/program.py:small --cluster cpu:8 --donate 0

The arguments are shapes and dtypes: a plan needs no numbers and no device, and a proof makes numbers up.
"""

import functools

import jax
import jax.numpy as jnp
import optax

import shardwright as sw

optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))


def init(key, width):
    up, down = jax.random.split(key)
    shapes = {"up": (width, 4 * width), "down": (4 * width, width)}
    keys = {"up": up, "down": down}
    params = {name: jax.random.normal(keys[name], shape) * shape[0] ** -0.5 for name, shape in shapes.items()}
    return {"params": params, "optimizer": optimizer.init(params)}


def train_step(state, batch):
    def loss(params):
        return jnp.mean((jax.nn.gelu(batch["x"] @ params["up"]) @ params["down"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(state["params"])
    updates, slots = optimizer.update(grads, state["optimizer"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "optimizer": slots}, {"loss": value}


def small():
    return train_step, arguments(width=256, rows=512)


def large():
    return train_step, arguments(width=8192, rows=131072)


def arguments(width, rows):
    state = jax.eval_shape(functools.partial(init, width=width), jax.random.key(0))
    return state, dict.fromkeys("xy", jax.ShapeDtypeStruct((rows, width), jnp.float32))


if __name__ == "__main__":
    step, args = large()
    print(sw.plan(step, *args, cluster="h100:2x8", donate_argnums=0))
