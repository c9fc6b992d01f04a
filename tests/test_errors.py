"""Tests of the phrases that messages share."""

import pytest

from fedwmsam.errors import OTHER_NAMES, printable, unknown_name_message
from fedwmsam.settings.config import setting_names


@pytest.mark.parametrize(
    ("name", "meant"),
    [("learning_rate", "lr"), ("Learning-Rate", "lr"), ("epochs", "local_epochs"), ("lrr", "lr")],
)
def test_an_unknown_name_is_suggested_by_meaning_before_similarity(name: str, meant: str):
    known = ["lr", "local_epochs", "lr_decay", "rounds"]
    message = unknown_name_message("setting", name, known)
    assert message.count("Did you mean") == 1 and f"Did you mean {meant!r}?" in message


def test_no_other_name_is_a_setting_itself():
    assert not set().union(*OTHER_NAMES.values()) & set(setting_names())


def test_a_strangers_text_stays_on_one_line_and_steers_no_terminal():
    text = "a\nb\x1b[2J\x9b1m\u202e\u2028é\ud800"
    assert printable(text) == "a\\nb\\x1b[2J\\x9b1m\\u202e\\u2028é\\ud800"
    assert len(printable("x" * 5000, 300)) == 300
    assert printable("whole", 5) == "whole"
