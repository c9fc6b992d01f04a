"""A model of the next character of a play, whose speakers are the clients.

    python examples/text_by_speaker.py                        # a small play, below
    python examples/text_by_speaker.py --file LINES.jsonl     # lines {"speaker": …, "text": …}

Nobody's lines leave their client. The table shows how often the next character is predicted right
for the speakers with most text, next to the prediction that needs no model: always the most
frequent character.
"""

import argparse
import json
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch import Tensor

import fedwmsam
from fedwmsam.data import load_dataset
from fedwmsam.models import model_factory

PLAY = {
    "Miller": "The wheel turns and the water runs, and the flour is white. {} "
    "The wheel turns as the water runs.",
    "Captain": "Hoist the sail and hold the line! {} Hold the line, I say, and hoist the sail!",
    "Clerk": "It is written in the book, page by page, that {} "
    "So it is written, page by page, in the book.",
    "Fool": "Ha, ha, why not, why not? {} Why not, why not, ha, ha!",
}
"""What each speaker says around the news."""
NEWS = (
    "the bridge is down and the king is late.",
    "the king will come when the moon is high.",
    "nobody has seen the king since the bridge came down.",
    "the moon is high and the bridge is down.",
    "a boat was seen below the bridge at dawn.",
    "the boat brought salt and letters for the king.",
    "the letters say that the king is late.",
    "at dawn the king will come by boat.",
)
SHOWN = 6
"""Number of speakers in the table."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Next-character prediction with speakers as clients."
    )
    parser.add_argument("--file", help='JSON lines {"speaker": …, "text": …}')
    file = parser.parse_args().file or write_play(Path(tempfile.mkdtemp(), "play.jsonl"))
    data = load_dataset(str(file), context=12, stride=2)
    assert data.train.groups is not None and data.test.groups is not None
    x, y = data.transform_split(data.train)
    clients = [
        (x[data.train.groups == group], y[data.train.groups == group])
        for group in range(len(data.group_names))
    ]
    print(f"{len(clients)} speakers, {len(x)} places to guess at, {data.num_classes} characters")

    test_x, test_y = data.transform_split(data.test)
    is_correct = {"always the same": test_y == y.mode().values}
    for method in ("fedavg", "fedwmsam"):
        network = model_factory("char", data.input_shape, data.num_classes)
        result = fedwmsam.fit(
            network, clients, method, rounds=8, clients_per_round=4, local_epochs=2, lr=0.2
        )
        is_correct[method] = result.predict(test_x).argmax(dim=1) == test_y
    print_table(is_correct, data.test.groups, data.group_names)


def print_table(is_correct: dict[str, Tensor], groups: Tensor, names: tuple[str, ...]) -> None:
    """Print the accuracies of each method for the speakers with most text, and for all."""
    by_size = groups.bincount(minlength=len(names)).argsort(descending=True).tolist()
    masks = [(names[group], groups == group) for group in by_size[:SHOWN]]
    masks.append(("all", groups >= 0))
    table = Table("speaker", *is_correct)
    for name, mask in masks:
        accuracies = [float(correct[mask].float().mean()) for correct in is_correct.values()]
        table.add_row(name, *(f"{accuracy:.3f}" for accuracy in accuracies))
    Console(width=110).print(table)


def write_play(path: Path) -> Path:
    """Write three scenes in which each speaker tells the news, and return the path."""
    with path.open("w", encoding="utf-8") as file:
        for scene in range(3):
            for speaker, manner in PLAY.items():
                for news in NEWS[scene:] + NEWS[:scene]:
                    print(json.dumps({"speaker": speaker, "text": manner.format(news)}), file=file)
    return path


if __name__ == "__main__":
    main()
