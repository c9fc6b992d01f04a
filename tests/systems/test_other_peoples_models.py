"""Models of transformers and peft, and tables of pandas: the real packages, nothing downloaded."""

import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from helpers.markdown_pages import ROOT
from helpers.plain_training import (
    PLAIN,
    assert_same_weights,
    full_batches,
    own_loss,
    train_plainly,
)
from helpers.small_bert import LENGTH, WORDS, small_bert_config
from torch import nn
from torch.utils.data import DataLoader

from fedwmsam import Result, fit

pytestmark = pytest.mark.systems
GENERATOR = torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def transformers():
    return pytest.importorskip("transformers")


def sentences(count):
    """Return token ids, a mask of those that count, and whether the word 1 is among them."""
    tokens = torch.randint(2, WORDS, (count, LENGTH), generator=GENERATOR)
    labels = torch.randint(2, (count,), generator=GENERATOR)
    tokens[labels == 1, 0] = 1
    mask = torch.ones_like(tokens)
    mask[:, 7:] = 0
    return {"input_ids": tokens, "attention_mask": mask}, labels


def take(inputs, rows):
    return {name: value[rows] for name, value in inputs.items()}


def train_own_loss(model, clients):
    """Return the model after FedAvg of full steps on its own loss."""
    return train_plainly(model, full_batches(clients), own_loss)


def test_bert_classifies_sequences(transformers):
    model = transformers.BertForSequenceClassification(
        small_bert_config(transformers, num_labels=2)
    )
    inputs, labels = sentences(30)
    pairs = [(take(inputs, slice(0, 12)), labels[:12]), (take(inputs, slice(12, 30)), labels[12:])]
    batches = [x | {"labels": y} for x, y in pairs]
    result = fit(model, pairs, test=(inputs, labels), **PLAIN)
    assert_same_weights(result.model, train_own_loss(model, batches))
    with_labels = fit(model, batches, test=inputs | {"labels": labels}, **PLAIN)
    assert_same_weights(with_labels.model, train_own_loss(model, batches))
    assert with_labels.last("accuracy") == result.last("accuracy")
    assert with_labels.last("loss") == pytest.approx(result.last("loss"), abs=1e-6)
    assert result.predict(inputs).shape == (30, 2)


def test_bert_learns_with_adamw_and_a_cosine(transformers, tmp_path):
    model = transformers.BertForSequenceClassification(
        small_bert_config(transformers, num_labels=2)
    )
    inputs, labels = sentences(120)
    clients = [
        take(inputs, slice(k, k + 30)) | {"labels": labels[k : k + 30]} for k in range(0, 120, 30)
    ]
    result = fit(
        model,
        clients,
        "fedwmsam",
        test=inputs | {"labels": labels},
        run_folder=tmp_path / "run",
        rounds=30,
        participation=1.0,
        local_epochs=2,
        batch_size=10,
        optimizer="adamw",
        lr=0.01,
        lr_schedule="cosine",
        lr_warmup=3,
    )
    assert result.last("accuracy") > 0.9
    loaded = Result.load(tmp_path / "run", model=model)
    assert loaded.evaluate((inputs, labels))["accuracy"] == result.last("accuracy")


def test_token_classification_has_its_classes_last(transformers):
    model = transformers.BertForTokenClassification(small_bert_config(transformers, num_labels=3))
    inputs, _ = sentences(20)
    labels = inputs["input_ids"] % 3
    labels[:, 7:] = -100
    batches = [
        take(inputs, slice(0, 8)) | {"labels": labels[:8]},
        take(inputs, slice(8, 20)) | {"labels": labels[8:]},
    ]
    result = fit(model, batches, test=inputs | {"labels": labels}, **PLAIN)
    expected = train_own_loss(model, batches).eval()
    assert_same_weights(result.model, expected)
    with torch.no_grad():
        output = expected(**inputs, labels=labels)
    assert result.last("loss") == pytest.approx(float(output.loss), abs=1e-6)
    right = (output.logits.argmax(-1) == labels)[labels != -100].double().mean()
    assert result.last("accuracy") == pytest.approx(float(right))


def test_causal_language_model_minimises_its_own_shifted_loss(transformers):
    config = transformers.GPT2Config(
        vocab_size=WORDS,
        n_positions=LENGTH,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = transformers.GPT2LMHeadModel(config)
    inputs, _ = sentences(20)
    batches = [take(inputs, rows) for rows in (slice(0, 8), slice(8, 20))]
    batches = [batch | {"labels": batch["input_ids"]} for batch in batches]

    result = fit(model, batches, test=batches[0], **PLAIN)
    expected = train_own_loss(model, batches).eval()
    assert_same_weights(result.model, expected)
    with torch.no_grad():
        output = expected(**batches[0])
    assert result.last("loss") == pytest.approx(float(output.loss), abs=1e-5)
    right = output.logits[:, :-1].argmax(-1) == batches[0]["labels"][:, 1:]
    assert result.last("accuracy") == pytest.approx(float(right.double().mean()))


def test_batches_of_a_tokenizer_and_a_loader(transformers):
    """A collator pads each batch to its own length, so that outputs differ in shape."""
    model = transformers.BertForTokenClassification(small_bert_config(transformers, num_labels=3))
    rows = []
    for length in (3, 5, 9, 4, 7, 2):
        tokens = torch.randint(2, WORDS, (length,), generator=GENERATOR).tolist()
        rows.append({"input_ids": tokens, "labels": [token % 3 for token in tokens]})

    def collate(batch):
        longest = max(len(row["input_ids"]) for row in batch)
        padded = {"input_ids": [], "labels": [], "attention_mask": []}
        for row in batch:
            missing = longest - len(row["input_ids"])
            padded["input_ids"].append(row["input_ids"] + [0] * missing)
            padded["labels"].append(row["labels"] + [-100] * missing)
            padded["attention_mask"].append([1] * len(row["labels"]) + [0] * missing)
        return transformers.BatchEncoding({k: torch.tensor(v) for k, v in padded.items()})

    loaders = [DataLoader(rows[:3], collate_fn=collate), DataLoader(rows[3:], collate_fn=collate)]
    settings = PLAIN | {"batch_size": 2}
    result = fit(model, loaders, test=DataLoader(rows, collate_fn=collate), **settings)
    assert 0 <= result.last("accuracy") <= 1


def test_adapters_of_peft(transformers, tmp_path):
    peft = pytest.importorskip("peft")
    base = transformers.BertForSequenceClassification(small_bert_config(transformers, num_labels=2))
    targets = ["query", "value"]
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=4, target_modules=targets)
    model = peft.get_peft_model(base, config)
    inputs, labels = sentences(40)
    clients = [
        (take(inputs, slice(0, 20)), labels[:20]),
        (take(inputs, slice(20, 40)), labels[20:]),
    ]
    settings = PLAIN | {"method": "fedwmsam", "run_folder": tmp_path / "run"}
    result = fit(model, clients, test=(inputs, labels), **settings)
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained and all("lora" in name or "classifier" in name for name in trained)
    before = model.state_dict()
    for name, value in result.model.items():
        if name not in trained and value.is_floating_point():
            assert torch.equal(value, before[name]), name
    changed = [name for name in trained if not torch.equal(result.model[name], before[name])]
    assert any("lora" in name for name in changed)


def test_the_example_adapts_a_pretrained_model(transformers):
    pytest.importorskip("peft")
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples" / "hugging_face.py")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = re.findall(r"^│ (all weights|LoRA and classifier) +│ ([\d,]+) +│ (\S+)", printed, re.M)
    (_, all_weights, full), (_, adapters, lora) = rows
    assert int(adapters.replace(",", "")) < int(all_weights.replace(",", "")) / 10
    assert float(full) > 0.95 and float(lora) > 0.85


def test_a_history_as_a_table_of_pandas():
    pytest.importorskip("pandas")
    x = torch.randn(40, 3, generator=GENERATOR)
    data = (x, (x[:, 0] > 0).long())
    result = fit(nn.Linear(3, 2), [data], test=data, **PLAIN | {"rounds": 3, "evaluate_every": 2})
    table = result.to_pandas()
    assert list(table.index) == [1, 2, 3]
    assert table["accuracy"].isna().tolist() == [True, False, False]
    assert table["train_loss"].tolist() == result.columns["train_loss"]
    assert [name for name in result.columns if name != "round"] == list(table.columns)


def test_tables_of_pandas():
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    frame = pandas.DataFrame({"u": random.normal(size=40), "v": random.normal(size=40)})
    frame["class"] = (frame["u"] > 0).astype(int)
    clients = [frame[:15], frame[15:]]
    model = nn.Linear(2, 2)
    result = fit(model, clients, target="class", test=frame, **PLAIN)
    arrays = [(part[["u", "v"]].to_numpy(), part["class"].to_numpy()) for part in clients]
    pair = (frame[["u", "v"]].to_numpy(), frame["class"].to_numpy())
    assert fit(model, arrays, test=pair, **PLAIN).rows == result.rows
    assert result.predict(frame).shape == (40, 2)


def test_texts_of_a_tokenizer_are_padded_by_its_collator(transformers):
    """Rows as a tokenizer makes them, of lists and with `label`: the usual form of text data."""
    words = {"[PAD]": 0, "[UNK]": 1, **{f"w{number}": number for number in range(2, WORDS)}}
    tokenizers = pytest.importorskip("tokenizers")
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]"
    )
    rows = []
    for number in range(16):
        text = " ".join(f"w{2 + (number + place) % 5}" for place in range(2 + number % 4))
        rows.append({**tokenizer(text), "label": number % 2})
    collate = transformers.DataCollatorWithPadding(tokenizer)
    model = transformers.BertForSequenceClassification(
        small_bert_config(transformers, num_labels=2)
    )
    clients = [rows[:6], rows[6:]]
    result = fit(model, clients, test=rows, collate=collate, **PLAIN)
    batches = [dict(collate(client)) for client in clients]
    assert_same_weights(result.model, train_own_loss(model, batches))
