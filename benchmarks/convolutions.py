"""Our convolutions beside PyTorch's: single ones, and a step of the models that are made of them.

    python benchmarks/convolutions.py [--repeats 9]

One thread, batches of 50 random images, forwards and backwards. A turn of a single convolution is
ten passes, one of a model is a step.
"""

import argparse
from collections.abc import Callable

import torch
from measuring import Turn, interleave, markdown_table, median, ratio, time_work
from torch import nn

from fedwmsam.models import MODELS
from fedwmsam.models.convolution import Convolution
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task, deterministic_torch, keep_freed_memory

BATCH = 50
PASSES = 10
SHAPES = {
    # inputs, outputs, kernel, stride, padding, side of the image
    "512 → 512, 3 × 3 on 1 × 1": (512, 512, 3, 1, 1, 1),
    "256 → 512, 3 × 3, stride 2 on 2 × 2": (256, 512, 3, 2, 1, 2),
    "256 → 512, 1 × 1, stride 2 on 2 × 2": (256, 512, 1, 2, 0, 2),
    "256 → 256, 3 × 3 on 2 × 2": (256, 256, 3, 1, 1, 2),
    "64 → 64, 3 × 3 on 8 × 8": (64, 64, 3, 1, 1, 8),
}
NETWORKS = ("cnn", "lenet", "resnet18", "resnet34", "resnet50", "resnet18-cifar")
HEADER = ["", "PyTorch's, CPU ms", "ours, CPU ms", "× ours"]


def convolution_turn(shape: tuple[int, ...], kind: type[nn.Conv2d]) -> Turn:
    """Return a turn of passes through one convolution."""
    *arguments, side = shape
    layer = kind(*arguments, bias=False)
    images = torch.randn(BATCH, shape[0], side, side, requires_grad=True)
    weights = torch.randn_like(layer(images))

    def work() -> None:
        for _ in range(PASSES):
            torch.autograd.grad(layer(images), [images, layer.weight], weights)

    return lambda: time_work(work)


def network_turn(name: str, kind: type[nn.Conv2d]) -> Turn:
    """Return a turn of one step of a model whose convolutions are of this kind."""
    model = MODELS[name]((3, 32, 32), 10)
    for module in model.modules():
        if isinstance(module, Convolution):
            module.__class__ = kind
    task = Task(model, OBJECTIVES["classification"])
    batch = (torch.randn(BATCH, 3, 32, 32), torch.randint(10, (BATCH,)))
    task.start_training({})
    return lambda: time_work(
        lambda: task.compute_gradient(task.initial_weights, batch, seed=0, update_buffers=True)
    )


def table_row(
    title: str, make_turn: Callable[[type[nn.Conv2d]], Turn], passes: int, repeats: int
) -> list[str]:
    """Return the times of both kinds of convolution and their ratio, taken in turn."""
    turns = {"theirs": make_turn(nn.Conv2d), "ours": make_turn(Convolution)}
    samples, _ = interleave(title, turns, repeats)
    times = [median(samples[name], "cpu") / passes * 1000 for name in turns]
    relative = ratio(samples["theirs"], samples["ours"], "cpu")
    return [title, *(f"{time:.1f}" for time in times), str(relative)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=9)
    repeats = parser.parse_args().repeats
    keep_freed_memory()  # as every task does: the system's pages are not the convolution's time
    with deterministic_torch():
        rows = []
        for title, shape in SHAPES.items():
            rows.append(
                table_row(title, lambda kind, s=shape: convolution_turn(s, kind), PASSES, repeats)
            )
        for name in NETWORKS:
            rows.append(table_row(name, lambda kind, n=name: network_turn(n, kind), 1, repeats))
    print(markdown_table(HEADER, rows))


if __name__ == "__main__":
    main()
