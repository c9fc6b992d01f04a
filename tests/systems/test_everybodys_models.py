"""Rows of "Everybody's model" on docs/your-model-and-data.md that need heavy packages."""

import numpy as np
import pytest
import torch
from helpers.model_table import fit_row
from helpers.plain_training import (
    PLAIN,
    assert_same_weights,
    full_batches,
    own_loss,
    train_plainly,
)
from helpers.small_bert import LENGTH, WORDS, small_bert_config
from torch import nn

pytestmark = pytest.mark.systems
GENERATOR = torch.Generator().manual_seed(0)


def make_bert():
    """Return a small BERT with random weights that says one of two classes."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    # The weights are so large that every part of it has a gradient that counts.
    config = small_bert_config(transformers, num_labels=2, initializer_range=0.3)
    return transformers.BertForSequenceClassification(config)


def encode(count):
    """Return sentences as a tokenizer has them, of which some are padded, with their labels."""
    tokens = torch.randint(2, WORDS, (count, LENGTH), generator=GENERATOR)
    mask = torch.ones_like(tokens)
    mask[::2, 6:] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens[:, 0] % 2}


CLIENTS = [encode(12), encode(18)]
ENCODED = encode(30)


def assert_as_plain(result, model):
    """Fail unless the result is that of a loop that minimises the model's own loss."""
    expected = train_plainly(model.train(), full_batches(CLIENTS), own_loss)
    assert_same_weights(result.model, expected)
    with torch.no_grad():
        output = expected.eval()(**ENCODED)
    right = (output.logits.argmax(1) == ENCODED["labels"]).double().mean()
    assert result.last("loss") == pytest.approx(float(output.loss), abs=1e-6)
    assert result.last("accuracy") == pytest.approx(float(right))


def test_bert():
    bert = make_bert()
    result = fit_row("BERT of Hugging Face", PLAIN, bert=bert, clients=CLIENTS, encoded=ENCODED)
    assert_as_plain(result, bert)


def test_bert_with_lora():
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(
        task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=["query", "value"], lora_dropout=0.0
    )
    models = []

    def get_peft_model(*arguments):
        models.append(peft.get_peft_model(*arguments))
        return models[-1]

    names = {"bert": make_bert(), "lora": lora, "get_peft_model": get_peft_model}
    result = fit_row("BERT with LoRA", PLAIN, clients=CLIENTS, encoded=ENCODED, **names)
    (model,) = models
    assert_as_plain(result, model)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained and all("lora" in name or "classifier" in name for name in trained)
    before = model.state_dict()
    changed = {name for name in before if not torch.equal(result.model[name], before[name])}
    assert changed <= trained
    for name in trained:
        assert (result.model[name] - before[name]).abs().max() > 1e-4, name


@pytest.mark.filterwarnings("error:The given NumPy array")
def test_data_frame():
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    frame = pandas.DataFrame({"u": random.normal(size=40), "v": random.normal(size=40)})
    frame.insert(1, "class", (frame["u"] > 0).astype(int))
    frames = [frame[:15], frame[15:]]
    net = nn.Linear(2, 2)
    result = fit_row("DataFrame", PLAIN, net=net, frames=frames, frame=frame)
    clients = []
    for part in frames:
        x = torch.tensor(part[["u", "v"]].to_numpy(), dtype=torch.float32)
        clients.append((x, torch.tensor(part["class"].to_numpy())))
    assert_same_weights(result.model, train_plainly(net, full_batches(clients)))
    right = (result.predict(frame).argmax(1).numpy() == frame["class"]).mean()
    assert result.last("accuracy") == pytest.approx(right)
