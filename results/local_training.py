"""FedAvg, SCAFFOLD and FedWMSAM with SGD and AdamW on the clients, for two models of characters.

    pip install --constraint constraints.txt --editable . transformers
    FEDWMSAM_DATA=FOLDER OMP_NUM_THREADS=1 python results/local_training.py

trains about 80 times, which takes 40 minutes of a core, and writes results/local-training.csv; what
the file has already is not made again.

The text is Tiny Shakespeare, whose speakers are the clients. `char` predicts the character
after 40 others, as the command line does (`--dataset shakespeare,stride=10 --model char`). The BERT
is small, made from a configuration with random weights, and sees only what is to the left of each
of 32 characters, of which it predicts the next. The step size is chosen for each method and
optimizer on a tenth of the clients' data, with a seed of its own. An accuracy is the mean over the
last five evaluations, those of rounds 32 to 40. AdamW's steps are not clipped: their length is
about the square root of the number of parameters, whatever the gradient's.
"""

import csv
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertLMHeadModel

from fedwmsam import InputError, fit
from fedwmsam.data import load_dataset
from fedwmsam.data.base import Dataset, Split
from fedwmsam.models.text import char_mlp

TABLE = Path(__file__).parent / "local-training.csv"
METHODS = ("fedavg", "scaffold", "fedwmsam")
FIRST_STEPS = {"sgd": 0.3, "adamw": 0.003}
"""Optimizers of the clients → the step size that is tried first."""
CLIP_NORMS = {"sgd": 10.0, "adamw": None}
STEPS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
SEEDS = (0, 1, 2)
TUNING_SEED = 100
TAIL = 5
"""The number of last evaluations whose mean is the score of a run."""
Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Problem:
    """A model, the speakers' texts and what a round of their training is."""

    make_model: Callable[[], nn.Module]
    clients: list[Samples]
    test: Samples
    clients_per_round: int
    local_steps: int
    batch_size: int


def divide_by_speaker(
    data: Dataset, make_samples: Callable[[Split], Samples]
) -> tuple[list[Samples], Samples]:
    """Return the training data of each speaker, and the test data."""
    inputs, targets = make_samples(data.train)
    groups = data.train.groups
    assert groups is not None
    speakers = [groups == speaker for speaker in range(len(data.group_names))]
    return [(inputs[rows], targets[rows]) for rows in speakers], make_samples(data.test)


def next_character() -> Problem:
    """Return the model of the command line, which sees 12 characters and predicts the next."""
    data = load_dataset("shakespeare", stride=10)
    clients, test = divide_by_speaker(data, data.transform_split)
    shape = data.input_shape
    return Problem(lambda: char_mlp(shape, data.num_classes), clients, test, 11, 20, 50)


def small_bert() -> Problem:
    """Return a BERT of two layers that predicts the character after each of a window."""
    length = 32
    data = load_dataset("shakespeare", context=length, stride=length)
    config = BertConfig(
        vocab_size=data.num_classes,
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        is_decoder=True,
        use_cache=False,
    )

    def make_samples(split: Split) -> Samples:
        inputs, labels = data.transform_split(split)
        return inputs, torch.cat([inputs[:, 1:], labels[:, None]], dim=1)

    clients, test = divide_by_speaker(data, make_samples)
    return Problem(lambda: BertLMHeadModel(config), clients, test, 5, 10, 32)


PROBLEMS = {"char": next_character, "small BERT": small_bert}


def train(problem: Problem, method: str, optimizer: str, lr: float, seed: int) -> float:
    """Return the accuracy of one run, on validation data with the seed of the tuning."""
    tuning = seed == TUNING_SEED
    try:
        result = fit(
            problem.make_model,
            problem.clients,
            method,
            test=None if tuning else problem.test,
            validation=0.1 if tuning else None,
            rounds=40,
            evaluate_every=2,
            clients_per_round=problem.clients_per_round,
            local_steps=problem.local_steps,
            batch_size=problem.batch_size,
            optimizer=optimizer,
            clip_norm=CLIP_NORMS[optimizer],
            lr=lr,
            seed=seed,
        )
    except InputError as error:
        print(method, optimizer, lr, error, flush=True)
        return 0.0
    accuracies = result.columns["validation_accuracy" if tuning else "accuracy"]
    evaluated = [accuracy for accuracy in accuracies if accuracy is not None]
    return mean(evaluated[-TAIL:]) if result.status == "completed" else 0.0


def choose_step(first: float, score: Callable[[float], float]) -> dict[float, float]:
    """Return step sizes with their scores, the best one first.

    Neighbours of the best one are tried until both of them are worse.
    """
    scores: dict[float, float] = {}
    best = STEPS.index(first)
    while True:
        for step in STEPS[max(best - 1, 0) : best + 2]:
            if step not in scores:
                scores[step] = score(step)
        chosen = max(scores, key=scores.__getitem__)
        if chosen == STEPS[best]:
            return dict(sorted(scores.items(), key=lambda item: -item[1]))
        best = STEPS.index(chosen)


def tune_and_train(problem: Problem, method: str, optimizer: str) -> list[str]:
    """Return the chosen step size, the accuracies of all seeds, and the step sizes tried."""

    def score(lr: float) -> float:
        return train(problem, method, optimizer, lr, TUNING_SEED)

    scores = choose_step(FIRST_STEPS[optimizer], score)
    lr = next(iter(scores))
    accuracies = [train(problem, method, optimizer, lr, seed) for seed in SEEDS]
    tried = "; ".join(f"{step:g}: {value:.4f}" for step, value in scores.items())
    return [f"{lr:g}", *(f"{accuracy:.4f}" for accuracy in accuracies), tried]


def read_rows() -> list[list[str]]:
    """Return the table as far as it is made, with its header."""
    if not TABLE.exists():
        return [["model", "method", "optimizer", "lr", *map(str, SEEDS), "tried"]]
    with TABLE.open(newline="") as file:
        return list(csv.reader(file))


def main() -> None:
    torch.set_num_threads(1)
    rows = read_rows()
    for name, make_problem in PROBLEMS.items():
        problem = make_problem()
        for method, optimizer in product(METHODS, FIRST_STEPS):
            if any(row[:3] == [name, method, optimizer] for row in rows):
                continue
            rows.append([name, method, optimizer, *tune_and_train(problem, method, optimizer)])
            print(*rows[-1], flush=True)
            with TABLE.open("w", newline="") as file:
                csv.writer(file, lineterminator="\n").writerows(rows)


if __name__ == "__main__":
    main()
