"""A question as buckets: what is kept of it, and nothing more."""

import re
import subprocess
import sys
import zlib

from hypothesis import given
from hypothesis import strategies as st

from hybrid.defer import BUCKETS, word_buckets


@given(st.text())
def test_the_buckets_are_sorted_each_once_and_in_range(text):
    """Any text is a question, half a character of two among them."""
    found = word_buckets(text)
    assert list(found) == sorted(set(found))
    assert all(0 <= bucket < 4096 for bucket in found)
    assert found == word_buckets(re.sub("[a-z]", lambda small: small[0].upper(), text))


def test_words_signs_and_neighbouring_pairs_are_what_counts():
    """Against a list written by hand."""
    words = ["what", "is", "000", "-", "0", "?"]
    pairs = ["what is", "is 000", "000 -", "- 0", "0 ?"]
    assert set(word_buckets("What is 123 - 4?")) == {zlib.crc32(each.encode()) % BUCKETS for each in words + pairs}
    assert word_buckets("b a") != word_buckets("a b")


def test_another_process_finds_the_same_buckets():
    """Python's own hash differs from run to run; this one is kept in files."""
    command = "from hybrid.defer import word_buckets; print(word_buckets('Wie groß ist 7²?'))"
    run = subprocess.run([sys.executable, "-c", command], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == str(word_buckets("Wie groß ist 7²?"))
