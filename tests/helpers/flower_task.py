"""The task of the deployed apps; the tests import the same file for the simulator."""

import torch
from torch import nn

LARGE = False
LOSS = "classification"
METRICS = None
SHAPE = (3, 8, 8) if LARGE else (20,)


def make_model():
    if LARGE:
        from fedwmsam.models import model_factory

        return model_factory("resnet18", SHAPE, 10)()
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data(partition, node_config):
    return make_samples(partition, 8 if LARGE else 40 + 7 * partition)


def load_test():
    return make_samples(99, 20)


def make_samples(seed, count):
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(10, (count,), generator=generator)
    noise = torch.randn(count, *SHAPE, generator=generator)
    return noise + y.view(-1, *[1] * len(SHAPE)) / 4, y
