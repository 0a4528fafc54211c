"""Parameters, FLOPs, memory, time and cost of a recipe before it runs; the published costs to compare with; the cost of
layer types."""

from regard.plan.block import BlockPlan, plan_block
from regard.plan.layer_types import LayerComparison, LayerSizes, compare_layer_types
from regard.plan.parallelism import GpuCluster, ParallelStrategy, plan_parallelism
from regard.plan.planner import Plan, plan
from regard.plan.tables import render, render_text
from regard.plan.throughput import DEVICES, DeviceSpeed, flops_from_time, measure_device
from regard.plan.training_costs import PUBLISHED_COSTS, CostTable, PublishedSystem, RunCost, run_costs

__all__ = [
    "DEVICES",
    "PUBLISHED_COSTS",
    "BlockPlan",
    "CostTable",
    "DeviceSpeed",
    "GpuCluster",
    "LayerComparison",
    "LayerSizes",
    "ParallelStrategy",
    "Plan",
    "PublishedSystem",
    "RunCost",
    "compare_layer_types",
    "flops_from_time",
    "measure_device",
    "plan",
    "plan_block",
    "plan_parallelism",
    "render",
    "render_text",
    "run_costs",
]
