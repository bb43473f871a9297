"""A small convolutional network in equinox: modules go in and come out as they are, sharded.

python examples/equinox_cnn.py
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

import shardwright as sw

jax.config.update("jax_num_cpu_devices", 8)  # eight virtual devices; leave this out where there are real ones

optimizer = optax.adam(3e-3)


class Net(eqx.Module):
    conv: eqx.nn.Conv2d
    pool: eqx.nn.MaxPool2d
    head: eqx.nn.MLP

    def __init__(self, key):
        conv, head = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(1, 16, kernel_size=3, padding=1, key=conv)
        self.pool = eqx.nn.MaxPool2d(kernel_size=4, stride=4)
        self.head = eqx.nn.MLP(16 * 4 * 4, 4, width_size=256, depth=1, key=head)

    def __call__(self, image):
        return self.head(self.pool(jax.nn.relu(self.conv(image))).ravel())


def train_step(model, slots, images, labels):
    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(images), labels).mean()

    value, grads = eqx.filter_value_and_grad(loss)(model)
    updates, slots = optimizer.update(grads, slots, eqx.filter(model, eqx.is_inexact_array))
    return eqx.apply_updates(model, updates), slots, value


def make_batch(key, size=256):
    """Images of noise with one bright quadrant, which is the label."""
    noise, where = jax.random.split(key)
    labels = jax.random.randint(where, (size,), 0, 4)
    bright = jnp.kron(jax.nn.one_hot(labels, 4).reshape(size, 1, 2, 2), jnp.ones((1, 1, 8, 8)))
    return jax.random.normal(noise, (size, 1, 16, 16)) + bright, labels


def main():
    model = Net(jax.random.key(0))
    slots = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
    step = sw.jit(train_step, donate_argnums=(0, 1))  # in place of eqx.filter_jit
    for i in range(20):
        images, labels = make_batch(jax.random.key(i))
        model, slots, loss = step(model, slots, images, labels)
        if i % 5 == 4:
            print(f"step {i + 1}  loss {loss:.4f}")
    print(f"\n{step.plan}\n")
    images, labels = make_batch(jax.random.key(100))
    right = jax.vmap(model)(images).argmax(-1) == labels
    print(f"the model is an ordinary equinox module: {right.mean():.0%} of 256 new images are right")


if __name__ == "__main__":
    main()
