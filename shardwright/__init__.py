"""Automatic parallel training for JAX: plan, partition, run and prove a step that was written for one device."""

from shardwright._api import diff as diff
from shardwright._api import jit as jit
from shardwright._api import load_plan as load_plan
from shardwright._api import plan as plan
from shardwright._api import prove as prove
from shardwright._plan import CompiledStep as CompiledStep
from shardwright._plan import InfeasibleError as InfeasibleError
from shardwright._plan import Plan as Plan
from shardwright.cluster import Cluster as Cluster
from shardwright.ops.pin import pin as pin
from shardwright.run.certificate import Certificate as Certificate
