"""Tests of the phrases that messages share."""

from fedwmsam.errors import printable


def test_a_strangers_text_stays_on_one_line_and_steers_no_terminal():
    text = "a\nb\x1b[2J\x9b1m\u202e\u2028é\ud800"
    assert printable(text) == "a\\nb\\x1b[2J\\x9b1m\\u202e\\u2028é\\ud800"
    assert len(printable("x" * 5000, 300)) == 300
    assert printable("whole", 5) == "whole"
