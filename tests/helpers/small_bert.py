"""The size of the small models of transformers that tests make from a config."""

from typing import Any

WORDS = 40
"""The number of different tokens."""
LENGTH = 9
"""The number of tokens of a sentence."""


def small_bert_config(transformers: Any, **values: Any) -> Any:
    """Return the config of a small BERT without dropout; `transformers` is the package."""
    return transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **values,
    )
