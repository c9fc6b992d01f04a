"""The model that the simulator trains as the deployed app does, to compare with."""

from dataclasses import replace
from pathlib import Path

import safetensors.torch
import torch

from fedwmsam import rng
from fedwmsam.data.adapter import make_data_adapter
from fedwmsam.engine.rounds import ClientFailure, train_client
from fedwmsam.experiment.assembly import make_run
from fedwmsam.methods import make_method
from fedwmsam.settings.config import Settings
from fedwmsam.training.objectives import OBJECTIVES
from fedwmsam.training.task import Task, deterministic_torch
from helpers import flower_task

SETTINGS = {"participation": 1.0, "local_epochs": 2, "batch_size": 16, "lr": 0.1, "seed": 5}
"""Settings of the runs, but for the method and the rounds."""


def client_data(count=3):
    return [flower_task.load_data(client, {}) for client in range(count)]


def model_of(folder: Path):
    return safetensors.torch.load_file(folder / "model.safetensors")


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def simulate(method, rows):
    """Return the simulator's model after the same rounds, with the same clients missing."""
    with deterministic_torch():
        task = Task(
            flower_task.make_model,
            OBJECTIVES["classification"],
            seed=rng.derive_seed(SETTINGS["seed"], "init"),
        )
        clients = make_data_adapter(task).to_clients(client_data(), None)
        settings = Settings(rounds=len(rows), **SETTINGS)
        run = make_run(settings, make_method(method), task, clients, None, None)

        def trainer(federation, jobs):
            for job in jobs:
                if job.client in left_out(rows[job.info.round]):
                    yield job, ClientFailure("", rejected=False)
                else:
                    yield job, train_client(federation, job)

        run.federation = replace(run.federation, trainer=trainer)
        run.execute()
        return run.model()


def left_out(row):
    return [*row.get("missing", []), *row.get("rejected", [])]
