"""The golden state.json of version 1: written again to the same bytes, read to what it held, and shown
by its page in docs/format."""

import pathlib

import numpy as np
from sameness import assert_same

from cairn import _plan, _tree

ROOT = pathlib.Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "compat" / "state_v1" / "state.json"


def state():
    w = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
    return {
        "model": {"w": w, "tied": w},
        "z": np.array([1 + 2j, 0], np.complex64),
        "epoch": 3,
        "best": float("inf"),
        "seed": 2**64,
        "key": b"\x00\xff",
        "betas": (0.9, 0.999),
        1: [None, True],
        "when": np.datetime64("2024-02-29", "s"),
        "tags": {"b", "a"},
    }


def test_the_state_is_encoded_to_the_golden_bytes():
    assert _tree.encode(state(), 0, 1, "rank_0").json == GOLDEN.read_text(encoding="utf-8")


def test_the_golden_bytes_hold_the_state():
    plan = _plan.Plan(
        _tree.Stored(GOLDEN.read_bytes(), "golden"), None, anything=True, strict=True, rename={},
        skip=set(),
    )  # fmt: skip
    expected = state()
    data = {"model/w": expected["model"]["w"], "z": expected["z"]}
    made = plan.finish(
        [("model", name, "", (), a.reshape(-1).view(np.uint8)) for name, a in data.items()]
    )
    assert_same(expected, made)
    assert made["model"]["w"] is made["model"]["tied"]


def test_the_page_shows_the_golden_bytes():
    page = (ROOT / "docs" / "format" / "state.md").read_text(encoding="utf-8")
    assert "```json\n" + GOLDEN.read_text(encoding="utf-8") + "\n```" in page
