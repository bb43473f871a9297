"""A multi-layer perceptron in plain JAX: the step is written for one device and runs on eight.

python examples/mlp.py
"""

import jax
import jax.numpy as jnp

import shardwright as sw

jax.config.update("jax_num_cpu_devices", 8)  # eight virtual devices; leave this out where there are real ones


def init(key):
    up, down = jax.random.split(key)
    params = {"up": jax.random.normal(up, (128, 512)) / 11, "down": jax.random.normal(down, (512, 128)) / 23}
    return params, jax.tree.map(jnp.zeros_like, params)


def train_step(state, batch):
    params, velocity = state

    def loss(params):
        return jnp.mean((jax.nn.gelu(batch["x"] @ params["up"]) @ params["down"] - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    return (jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity), velocity), value


def main():
    state, x = init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (2048, 128))
    batch = {"x": x, "y": jnp.roll(x, 1, axis=1)}
    step = sw.jit(train_step, donate_argnums=0)  # in place of jax.jit
    for i in range(40):
        state, loss = step(state, batch)
        if i % 10 == 9:
            print(f"step {i + 1}  loss {loss:.4f}")
    print(f"\n{step.plan}\n\nThe weights lie on {len(state[0]['up'].sharding.device_set)} devices.")


if __name__ == "__main__":
    main()
