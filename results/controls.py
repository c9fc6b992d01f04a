"""SCAFFOLD with FedWMSAM-plus's average: what of its gain would be any method's.

    python results/controls.py OUT [SEED…]     # the runs of plans/control.toml, or those of these seeds; resumable

It is not among the library's methods: this script makes it known to its own process, so that `compare`, which trains in
others, cannot run it.
"""

import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor

from fedwmsam.comparison.grid import make_grid
from fedwmsam.comparison.hand import opened
from fedwmsam.experiment import prepare
from fedwmsam.methods import METHODS, SCAFFOLD
from fedwmsam.methods.base import Info
from fedwmsam.methods.fedwmsam_plus import averaged
from fedwmsam.options import option
from fedwmsam.training.vectors import Vectors

PLAN = Path(__file__).resolve().parent / "plans" / "control.toml"


@dataclass(frozen=True)
class AveragedSCAFFOLD(SCAFFOLD):
    average_power: float = option(8.0, "γ: early on, the r-th model counts like r^γ in the average", low=0.0, high=1e9)

    name: ClassVar[str] = "scaffold-averaged"

    def server_init(self, w: Tensor) -> Vectors:
        return super().server_init(w) | {"x": w}

    def downlink(self, server: Vectors, memory: Vectors, info: Info) -> Vectors:
        return super().downlink(server | {"w": server["x"]}, memory, info)

    def aggregate(self, server: Vectors, mean: Vectors, info: Info) -> Vectors:
        after = super().aggregate(server | {"w": server["x"]}, mean, info)
        return after | {"x": after["w"], "w": averaged(server["w"], after["w"], self.average_power, info)}


METHODS[AveragedSCAFFOLD.name] = AveragedSCAFFOLD

if __name__ == "__main__":
    seeds = [int(seed) for seed in sys.argv[2:]]
    plan = tomllib.loads(PLAN.read_text()) | ({"seeds": seeds} if seeds else {})
    for member in make_grid(plan, {}).members():
        experiment = prepare(member.config)
        print(member.folder, experiment.run(opened(experiment, member.place(Path(sys.argv[1])))).status)
