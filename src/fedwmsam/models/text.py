"""A model that predicts the next character of a text."""

from torch import Tensor, nn

from fedwmsam.errors import InputError
from fedwmsam.models.input_shape import InputShape

WINDOW = 12
"""The number of characters that the model sees at most."""


class NextCharacter(nn.Module):
    """A network with two hidden layers over the embeddings of the last characters, at most 12.

    It was chosen for speed: with half a minute of one CPU core it learnt more than GRUs and
    convolutions did, because a GRU's step takes five times as long over 16 characters and twenty
    times as long over 64. It cannot see further back.
    """

    def __init__(self, context: int, vocabulary: int, width: int = 32, hidden: int = 256) -> None:
        super().__init__()
        self.window = min(context, WINDOW)
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.Sequential(
            nn.Linear(self.window * width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, vocabulary),
        )

    def forward(self, characters: Tensor) -> Tensor:
        """Return logits (batch, vocabulary) for int64 characters (batch, context)."""
        recent: Tensor = self.embedding(characters[:, -self.window :])
        logits: Tensor = self.layers(recent.flatten(1))
        return logits


def char_mlp(shape: InputShape, classes: int) -> nn.Module:
    """Return a model of the next character; raise InputError if the inputs are no sequences."""
    if len(shape) != 1 or shape[0] < 1:
        raise InputError(
            "The model 'char' takes sequences of characters of shape (context length,), "
            f"not inputs of shape {shape}: choose a model for images."
        )
    return NextCharacter(shape[0], classes)
