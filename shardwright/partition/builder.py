"""The state of lowering one block: operations so far, and where each variable can be had."""

from __future__ import annotations

import math

from shardwright.partition.context import Context, device_shape, padded_shape
from shardwright.partition.cuts import Cuts, placed
from shardwright.partition.device import Compute, Constant, Fallback, Move, Op, Slot
from shardwright.partition.routes import route
from shardwright.plan.placement import Placement, local_shape, whole, with_dim, without_partial
from shardwright.program.ir import Atom, Equation, Literal, Source, Var
from shardwright.rules.classes import Facts

NOWHERE = Source()


class Builder:
    """Operations of one block, and for each variable its slots: the first is where it was computed."""

    def __init__(
        self,
        context: Context,
        cuts: Cuts,
        wanted: list[Placement | None],
        stay_pending: frozenset[int],
        fallbacks: list[Fallback],
        turns: int = 1,
    ):
        self.context = context
        self.cuts = cuts
        self.wanted = wanted
        self.stay_pending = stay_pending
        self.turns = turns
        self.fallbacks = fallbacks
        self.ops: list[Op] = []
        self.made: dict[Var, Source] = {}
        self._slots: dict[Var, dict[Placement, Slot]] = {}
        self._sources: dict[Var, Equation] = {}
        self._transposed: dict[Var, Equation] = {}
        self._gathered_before: set[Slot] = set()
        self._latest: Slot | None = None

    def slot(self, v: Var, placement: Placement) -> Slot:
        """A new slot for `v`."""
        if not placement.axes:
            return Slot(v.aval, placement, v.aval.shape)
        return Slot(v.aval, placement, device_shape(self.context, v, placement))

    def define(self, v: Var, slot: Slot, source: Source = NOWHERE) -> None:
        """`v` has just been computed in `slot`, by the equation from `source`."""
        self._slots[v] = {slot.placement: slot}
        self.made[v] = source
        if slot.shape:
            self._latest = slot

    def define_transposed(self, v: Var, eqn: Equation) -> None:
        """`v` has been computed by a transposition."""
        self._transposed[v] = eqn

    def define_source(self, v: Var, eqn: Equation) -> None:
        """`v` is computed from nothing (zeros, iota): it is made anew in every placement that is asked for."""
        self._slots[v] = {}
        self._sources[v] = eqn
        self.made[v] = eqn.source

    def available(self, v: Var) -> dict[Placement, Slot]:
        """Every placement in which `v` can be had without a move."""
        return self._slots[v]

    def primary(self, a: Atom) -> Slot:
        """Where `a` was computed; a constant is whole everywhere."""
        if not isinstance(a, Var):
            return self._constant(a)
        if not self._slots[a]:
            eqn = self._sources[a]
            self._make(a, placed(self.context.classes.facts[eqn].factors.results[0], self.cuts.axes[eqn]))
        return next(iter(self._slots[a].values()))

    def _make(self, v: Var, placement: Placement) -> Slot | None:
        """Computes a source in this placement; None where it cannot be."""
        eqn = self._sources[v]
        facts = self.context.classes.facts[eqn]
        if any(axes and f is None for f, axes in zip(facts.factors.results[0], placement.dims, strict=True)):
            return None
        return self._computed(v, eqn, tuple(a for a in eqn.invars if isinstance(a, Literal)), placement)

    def _computed(self, v: Var, eqn: Equation, inputs: tuple[Slot | Literal, ...], placement: Placement) -> Slot:
        """`v` by its equation, which cuts nothing but the dims of its result."""
        facts = self.context.classes.facts[eqn]
        cut: list[tuple[str, ...]] = [()] * len(facts.factors.sizes)
        for f, axes in zip(facts.factors.results[0], placement.dims, strict=True):
            if f is not None:
                cut[f] = axes
        blocks = tuple(
            self.block_size(facts, f, axes) if axes else facts.factors.sizes[f] for f, axes in enumerate(cut)
        )
        slot = self.slot(v, placement)
        self.ops.append(Compute(eqn, facts.row, facts.factors, inputs, (slot,), tuple(cut), blocks))
        self._slots[v][placement] = slot
        return slot

    def _turned(self, v: Var, placement: Placement, source: Source) -> Slot | None:
        """A transposed value of which the original can be had like this without a move: transposed once more."""
        eqn = self._transposed.get(v)
        if eqn is None or placement.partial:
            return None
        (a,) = eqn.invars
        dims = dict(zip(eqn.params["permutation"], placement.dims, strict=True))
        slot = self._slots[a].get(Placement(tuple(dims[d] for d in range(len(dims))))) if isinstance(a, Var) else None
        return self._computed(v, eqn, (slot,), placement) if slot and self._is_fresh(slot, source) else None

    def _constant(self, a: Literal) -> Slot:
        slot = Slot(a.aval, whole(a.aval.ndim), a.aval.shape)
        self.ops.append(Constant(a.value, (slot,)))
        return slot

    def parts(self, axes: tuple[str, ...]) -> int:
        """Into how many blocks these axes cut."""
        return math.prod(self.context.mesh[a] for a in axes)

    def block_size(self, facts: Facts, factor: int, axes: tuple[str, ...]) -> int:
        """Size of one block of a factor that `axes` cut, in its own units."""
        size, c = facts.factors.sizes[factor], facts.classes[factor]
        assert c is not None, "a factor without a class is never cut"
        return self.context.padded_sizes[c] * (size // self.context.classes.all[c].size) // self.parts(axes)

    def get(self, a: Atom, placement: Placement, source: Source, why: str) -> Slot:
        """`a` in this placement, moved there if it cannot be had otherwise."""
        if isinstance(a, Var):
            v, slots = a, self._slots[a]
        else:
            v, slot = Var(a.aval), self.primary(a)
            slots = {slot.placement: slot}
        if placement in slots and self._is_fresh(slots[placement], source):
            return slots[placement]
        if placement in slots:
            return self._gathered_again(v, slots, placement, source, why)
        if isinstance(a, Var) and a in self._sources:
            made = None if placement.partial else self._make(a, placement)
            if made is not None:
                return made
            self.primary(a)
        turned = self._turned(v, placement, source)
        if turned is not None:
            return turned
        if not any(set(placement.partial) <= set(at.partial) for at in slots):
            return self._expanded(v, slots, placement, source, why) or self._masked(v, slots, placement, source, why)
        return self._moved(v, slots, placement, source, why)

    def _is_fresh(self, slot: Slot, source: Source) -> bool:
        """Whether a value can be used again: not in the backward if the plan gathers the forward's gathers anew."""
        return not (slot in self._gathered_before and _is_backward(source))

    def _gathered_again(
        self, v: Var, slots: dict[Placement, Slot], placement: Placement, source: Source, why: str
    ) -> Slot:
        """Gathers `v` anew, behind the latest value: else the compiler would merge the two gathers."""
        at, start = next((p, s) for p, s in slots.items() if s not in self._gathered_before)
        held = Slot(start.aval, at, start.shape)
        trigger = (self._latest,) if self._latest is not None else ()
        self.ops.append(Move("barrier", (start, *trigger), (held,), (), source, why=why))
        fresh = {at: held}
        slot = self._moved(v, fresh, placement, source, why)
        slots.update({p: s for p, s in fresh.items() if p != at})
        return slot

    def _expanded(
        self, v: Var, slots: dict[Placement, Slot], placement: Placement, source: Source, why: str
    ) -> Slot | None:
        """A value that must enter a pending sum on axes that cut a dim of it: a block between zeros; else None."""
        for at, slot in slots.items():
            fresh = tuple([p for p in placement.partial if p not in at.partial])
            for dim, axes in enumerate(at.dims):
                kept, last = axes[: -len(fresh)], axes[-len(fresh) :]
                if {(axis, "sum") for axis in last} == set(fresh):
                    place = Placement(with_dim(at, dim, kept).dims, tuple(sorted((*at.partial, *fresh))))
                    slots[place] = self.slot(v, place)
                    self.ops.append(Move("expand", (slot,), (slots[place],), last, source, dim, why=why))
                    return self._moved(v, slots, placement, source, why)
        return None

    def _masked(self, v: Var, slots: dict[Placement, Slot], placement: Placement, source: Source, why: str) -> Slot:
        """A value that is not pending but must enter a pending sum: the first device keeps it, the others hold zero."""
        slot = self._moved(v, slots, without_partial(placement), source, why)
        target = Slot(v.aval, placement, slot.shape)
        self.ops.append(Move("mask", (slot,), (target,), tuple(a for a, _ in placement.partial), source, why=why))
        slots[placement] = target
        return target

    def _moved(self, v: Var, slots: dict[Placement, Slot], placement: Placement, source: Source, why: str) -> Slot:
        if v in self.context.classes.of:
            padded = padded_shape(self.context, v)
        else:  # a constant has no class
            padded = tuple(
                math.ceil(n / self.parts(axes)) * self.parts(axes)
                for n, axes in zip(v.aval.shape, placement.dims, strict=True)
            )
        best = None
        for at, slot in slots.items():
            if not set(placement.partial) <= set(at.partial):
                continue
            found = route(v.aval.shape, padded, v.aval.itemsize, at, placement, self.context.mesh_items)
            if best is None or found[0] < best[0][0]:
                best = found, slot
        assert best is not None, f"{placement} cannot be reached from {list(slots)}"
        (_, steps), slot = best
        for step in steps:
            target = Slot(v.aval, step.target, local_shape(v.aval.shape, padded, step.target, self.context.mesh))
            self.ops.append(
                Move(step.kind, (slot,), (target,), step.axes, source, step.dim, step.other_dim, step.monoid, why)
            )
            slots[step.target] = slot = target
            if step.kind == "all_gather" and self.context.decision.regather and not _is_backward(source):
                self._gathered_before.add(slot)
        return slot


def _is_backward(source: Source) -> bool:
    """Whether reverse-mode differentiation made the equation: jax writes so into its name scope."""
    return "transpose(" in source.scope
