"""The demo of `shardwright train`: a transformer planned, proven and trained in memory that one device does not have.

The planner, the prover and the counter of XLA's collectives come as arguments: this room plans nothing itself.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np

from shardwright import cluster as clusters
from shardwright.plan.amounts import bytes_text
from shardwright.train import loop, progress, text, transformer
from shardwright.train.closing import DemoResult, Figures, Model, peak_bytes

_PROMPT = b"def "
_TEMPERATURE = 0.7
_NUM_HELD_OUT_BATCHES = 4

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Options:
    """What a user may choose.

    Attributes:
        cluster: The devices to plan for; they must be attached.
        memory: The budget of one device, as bytes or as "40MB".
        model: Sizes and optimizer; its `num_steps` is the number of steps.
        batch: Windows of text in a batch.
        limit_seconds: Of training; it ends early on a slow machine.
        data: A directory of text files; None is Python's standard library.
        plan_file: Where the plan is saved.
        seed: Of parameters, batches and samples.
        num_sample_bytes: Bytes of text that the model writes before and after.
        proof_steps: Steps that the prover runs.
    """

    cluster: str = "cpu:8"
    memory: str | int = "40MB"
    model: transformer.Config = dataclasses.field(default_factory=transformer.Config)
    batch: int = 16
    limit_seconds: float = 75.0
    data: str | None = None
    plan_file: pathlib.Path = pathlib.Path("demo-plan.json")
    seed: int = 0
    num_sample_bytes: int = 240
    proof_steps: int = 3


def run_demo(
    planner: Callable[..., Any],
    prover: Callable[..., Any],
    options: Options,
    *,
    count_sent: Callable[[str], float],
    say: Say,
    stream: TextIO,
) -> DemoResult:
    """Plans, proves and trains; says what it does as it goes.

    Args:
        planner: `sw.plan`.
        prover: `sw.prove`.
        options: The user's choices.
        count_sent: Text of a compiled program → bytes that one device sends in one run of it.
        say: Is given one paragraph at a time.
        stream: Where the progress of training goes.

    Raises:
        ValueError: No text, or no plan within the budget.
    """
    corpus = text.load(options.data)
    say(_about(corpus, options))
    step = transformer.make_train_step(options.model)
    one_device, plan = _plan(planner, step, options, count_sent, say)
    fn = plan.compile()
    planned = _figures(plan, fn.compiled, count_sent)

    batches = text.batches(corpus.train, options.batch, options.model.sequence, options.seed)
    state = plan.init(lambda key: transformer.init_state(key, options.model), jax.random.key(options.seed))
    say(f"Proving {options.proof_steps} steps, the plan against one device ...")
    certificate = prover(plan, step, jax.device_get(state), next(batches), steps=options.proof_steps)
    say(str(certificate))

    look = _looker(corpus, options)
    before = look(state)
    say(_about_model("Before training", before))
    run = _train(fn, state, batches, options, say, stream)
    after = look(run.state)
    say(_about_model("After training", after))
    return DemoResult(
        cluster=options.cluster,
        num_devices=math.prod(dict(plan.mesh).values()),
        budget_bytes=clusters.memory(options.memory),
        one_device=one_device,
        planned=planned,
        before=before,
        after=after,
        losses=run.losses,
        seconds=run.seconds,
        tokens_per_second=run.tokens_per_second,
        certificate=certificate,
        plan_file=str(options.plan_file),
    )


def _plan(planner, step, o: Options, count_sent, say: Say) -> tuple[Figures, Any]:
    """Returns what one device needs, and the plan for all of them within the budget."""
    budget, args = clusters.memory(o.memory), _abstract_arguments(o)
    one_device = _one_device(planner, step, args, count_sent)
    say(_about_budget(one_device, budget, o.cluster))
    plan = planner(step, *args, cluster=o.cluster, memory=budget, donate_argnums=0)
    plan.save(o.plan_file)
    say(f"{plan}\n\nThe plan is saved as {o.plan_file}. Compiling ...")
    return one_device, plan


def _train(fn, state: Any, batches: Iterator[np.ndarray], o: Options, say: Say, stream: TextIO) -> loop.Run:
    watch, num_steps = progress.watch_on(stream), o.model.num_steps
    run = loop.run(fn, state, batches, num_steps=num_steps, limit_seconds=o.limit_seconds, watch=watch)
    if run.num_steps < num_steps:
        say(f"Stopped after {run.num_steps} of {num_steps} steps: the {o.limit_seconds:.0f} s for training were over.")
    return run


def _abstract_arguments(o: Options) -> tuple[Any, jax.ShapeDtypeStruct]:
    state = jax.eval_shape(lambda key: transformer.init_state(key, o.model), jax.random.key(o.seed))
    return state, jax.ShapeDtypeStruct((o.batch, o.model.sequence + 1), jnp.int32)


def _one_device(planner: Callable[..., Any], step: Callable[..., Any], args: tuple, count_sent) -> Figures:
    """The step as a user would jit it; the planner is asked what it thinks of that one device."""
    compiled = jax.jit(step, donate_argnums=0).lower(*args).compile()
    plan = planner(step, *args, cluster="cpu:1", donate_argnums=0)
    return _figures(plan, compiled, count_sent)


def _figures(plan: Any, compiled: Any, count_sent: Callable[[str], float]) -> Figures:
    return Figures(
        predicted_peak_bytes=plan.estimate.memory.peak_bytes,
        reported_peak_bytes=peak_bytes(compiled),
        predicted_sent_bytes=plan.estimate.bytes_sent,
        reported_sent_bytes=count_sent(compiled.as_text()),
    )


def _looker(corpus: text.Corpus, o: Options) -> Callable[[transformer.State], Model]:
    """Returns a function that measures a model and lets it write.

    It does so on one device: the parameters alone fit there, it is the training step that does not.
    """
    held_out = text.batches(corpus.held_out, o.batch, o.model.sequence, o.seed)
    fixed = list(itertools.islice(held_out, _NUM_HELD_OUT_BATCHES))
    evaluate = transformer.make_evaluate(o.model)
    sample = transformer.make_sample(o.model, o.num_sample_bytes, _TEMPERATURE)
    prompt = np.frombuffer(_PROMPT, np.uint8).astype(np.int32)

    def look(state: transformer.State) -> Model:
        params = jax.device_get(state["params"])
        losses = [float(evaluate(params, batch)) for batch in fixed]
        written = sample(params, prompt, jax.random.key(o.seed))
        return Model(float(np.mean(losses)), text.printable(np.asarray(written)))

    return look


def _about(corpus: text.Corpus, o: Options) -> str:
    params = jax.eval_shape(lambda key: transformer.init_params(key, o.model), jax.random.key(0))
    num_params = sum(x.size for x in jax.tree.leaves(params))
    skipped = f", {corpus.num_skipped} empty or binary files skipped" if corpus.num_skipped else ""
    return (
        f"Text    {corpus.source}: {corpus.num_files} files{skipped}; "
        f"{bytes_text(corpus.train.size)} to train on, {bytes_text(corpus.held_out.size)} held out\n"
        f"Model   byte-level transformer, {num_params / 1e6:.1f} M parameters, {o.model.layers} layers of width "
        f"{o.model.width}, AdamW; batch {o.batch} x {o.model.sequence} bytes"
    )


def _about_budget(one_device: Figures, budget: int, cluster: str) -> str:
    needed = one_device.reported_peak_bytes
    first = f"Budget  {bytes_text(budget)} of memory a device, on {cluster}"
    if needed <= budget:
        return f"{first}. One device could meet it: it needs {bytes_text(needed)} by XLA's own report."
    return (
        f"{first}. One device cannot meet it: by XLA's own report it needs {bytes_text(needed)}, "
        f"{needed / budget:.1f} times as much. Planning ..."
    )


def _about_model(title: str, model: Model) -> str:
    written = "\n".join(f"    | {line}" for line in model.sample.splitlines())
    return f"{title}: held-out loss {model.held_out_loss:.3f} nats a byte. The model writes:\n{written}"
