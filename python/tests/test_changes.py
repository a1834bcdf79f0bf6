"""The notes in changes/ can be put together: each has its number for itself and says its kind."""

import re
from collections import Counter
from pathlib import Path

NOTES = sorted((Path(__file__).resolve().parents[2] / "changes").glob("[0-9]*.md"))
KIND = re.compile(r"\*\*(New|Changed|Fixed|Faster|Removed)\b")


def test_each_number_stands_once():
    numbers = Counter(note.name.split("-")[0] for note in NOTES)
    assert numbers and [number for number, count in numbers.items() if count > 1] == []


def test_each_note_begins_with_its_kind():
    assert [note.name for note in NOTES if not KIND.match(note.read_text())] == []
