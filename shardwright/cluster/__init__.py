"""Where it runs: devices, links and topologies, as data; every figure with its source."""

from shardwright.cluster.cluster import Cluster as Cluster
from shardwright.cluster.cluster import Device as Device
from shardwright.cluster.cluster import Link as Link
from shardwright.cluster.cluster import peak_flops_per_second as peak_flops_per_second
from shardwright.cluster.links import axis_links as axis_links
from shardwright.cluster.links import group_link as group_link
from shardwright.cluster.parse import attached as attached
from shardwright.cluster.parse import memory as memory
from shardwright.cluster.parse import names as names
from shardwright.cluster.parse import parse as parse
from shardwright.cluster.schema import to_toml as to_toml
