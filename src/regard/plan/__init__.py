"""Parameters, FLOPs, memory, time and cost of a recipe, before it runs; the published costs to hold them against;
and what the types of layers cost."""

from regard.plan.block import BlockPlan, plan_block
from regard.plan.layer_types import LayersPlan, Sizes, plan_layers
from regard.plan.parallelism import Machine, Way, spread
from regard.plan.planner import Plan, plan
from regard.plan.tables import render, text
from regard.plan.throughput import DEVICES, Device, measure_device, training_flops
from regard.plan.training_costs import PUBLISHED, Costs, OwnRun, System, costs, own_costs

__all__ = [
    "DEVICES",
    "PUBLISHED",
    "BlockPlan",
    "Costs",
    "Device",
    "LayersPlan",
    "Machine",
    "OwnRun",
    "Plan",
    "Sizes",
    "System",
    "Way",
    "costs",
    "measure_device",
    "own_costs",
    "plan",
    "plan_block",
    "plan_layers",
    "render",
    "spread",
    "text",
    "training_flops",
]
