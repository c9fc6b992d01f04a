"""A pretrained Hugging Face model, adapted by four clinics: all of its weights, or LoRA's only.

python examples/hugging_face.py        # needs pip install transformers peft

Nothing is downloaded: a small BERT is made from a configuration and pretrained here, on public
notes. With a network, `AutoModelForSequenceClassification.from_pretrained` and its tokenizer take
the place of `pretrain` and `write_notes`.
"""

import random
import sys

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import fedwmsam

try:
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}: {sys.executable} -m pip install transformers peft") from error

URGENT = ["bleeding", "collapse", "seizure", "poisoning", "fracture"]
ROUTINE = ["checkup", "vaccination", "renewal", "certificate", "advice"]
OTHER = [
    "patient",
    "reports",
    "since",
    "today",
    "mild",
    "severe",
    "again",
    "child",
    "adult",
    "asks",
    "for",
    "after",
]
WORDS = ["[pad]", *URGENT, *ROUTINE, *OTHER]
LENGTH = 10
CLINICS = {"north": 0.9, "south": 0.6, "coast": 0.3, "hills": 0.1}
"""Each clinic's share of urgent notes: their labels differ, as federations' labels do."""


def write_notes(count: int, urgent_share: float, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return notes as a tokenizer returns them, and the topic of each."""
    source = random.Random(seed)
    topics = [
        source.choice(URGENT if source.random() < urgent_share else ROUTINE) for _ in range(count)
    ]
    rows = []
    for topic in topics:
        words = source.choices(OTHER, k=source.randint(4, LENGTH - 1))
        words.insert(source.randrange(len(words)), topic)
        rows.append([WORDS.index(word) for word in words] + [0] * (LENGTH - len(words)))
    tokens = torch.tensor(rows)
    encoded = {"input_ids": tokens, "attention_mask": (tokens > 0).long()}
    return encoded, torch.tensor([WORDS.index(topic) - 1 for topic in topics])


def make_bert(labels: int) -> BertForSequenceClassification:
    """Return a small BERT with random weights that tells so many classes apart."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=labels,
    )
    return BertForSequenceClassification(config)


def pretrain() -> dict[str, Tensor]:
    """Return the weights, but the classifier's, of a BERT that finds the topic of public notes."""
    encoded, topics = write_notes(1000, 0.5, seed=50)
    model = make_bert(len(URGENT) + len(ROUTINE))
    public = [encoded | {"labels": topics}]
    result = fedwmsam.fit(model, public, "fedavg", rounds=6, participation=1.0, lr=0.2)
    return {name: w for name, w in result.model.items() if not name.startswith("classifier")}


def ask_urgency(count: int, urgent_share: float, seed: int) -> dict[str, Tensor]:
    """Return notes with the label 1 where the topic is an urgent one."""
    encoded, topics = write_notes(count, urgent_share, seed)
    return encoded | {"labels": (topics < len(URGENT)).long()}


def main() -> None:
    clients = {}
    for seed, (name, share) in enumerate(CLINICS.items()):
        clients[name] = ask_urgency(60, share, seed)
    test = ask_urgency(400, 0.5, seed=99)
    pretrained = pretrain()
    table = Table("trained", "numbers that travel", "accuracy", *CLINICS)
    for name in ("all weights", "LoRA and classifier"):
        model = make_bert(2)
        model.load_state_dict(pretrained, strict=False)
        if name != "all weights":
            # Everything else is frozen, and neither travels nor is saved with every checkpoint.
            lora = LoraConfig(task_type="SEQ_CLS", r=4, target_modules=["query", "value"])
            model = get_peft_model(model, lora)
        # A batch with labels: the model computes its own loss.
        result = fedwmsam.fit(model, clients, test=test, participation=0.5, rounds=10, lr=0.1)
        travels = sum(w.numel() for w in result.trained.values())
        accuracies = [result.last("accuracy")]
        accuracies += [result.evaluate(notes)["accuracy"] for notes in clients.values()]
        table.add_row(name, f"{travels:,}", *(f"{accuracy:.3f}" for accuracy in accuracies))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
