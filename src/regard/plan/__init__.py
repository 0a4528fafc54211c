"""Parameters, FLOPs, memory, time and cost of a recipe, before it runs; and the published costs to hold them against."""

from regard.plan.block import BlockPlan, plan_block
from regard.plan.clock import DEVICES, Device, measure_device, training_flops
from regard.plan.planned import Plan, plan
from regard.plan.published import PUBLISHED, Costs, OwnRun, System, costs, own_costs
from regard.plan.show import render, text

__all__ = [
    "DEVICES",
    "PUBLISHED",
    "BlockPlan",
    "Costs",
    "Device",
    "OwnRun",
    "Plan",
    "System",
    "costs",
    "measure_device",
    "own_costs",
    "plan",
    "plan_block",
    "render",
    "text",
    "training_flops",
]
