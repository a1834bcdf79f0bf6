#!/usr/bin/env python3
"""Makes a small click-through data set: one text file for each day.

    python3 examples/data/make_ctr_days.py OUT [--days 3] [--rows 4000] [--seed 7]

A line is `label user item place hour`: whether it was clicked (0 or 1), then four ids below 1000. Every user and every item
has a hidden taste; what is shown changes from day to day, so a model that saw more days knows more of them.
"""

import argparse
import math
import os
import random

FIELDS = 4
IDS = 1000  # ids of one field


def taste(seed, field, identity):
    """Hidden, the same on every day."""
    return random.Random(f"{seed}/{field}/{identity}").gauss(0, 1.2)


def rows(seed, day, count):
    draw = random.Random(f"{seed}/day {day}")
    users = [draw.randrange(IDS) for _ in range(300)]  # who is here today
    for _ in range(count):
        ids = [draw.choice(users), min(IDS - 1, int(draw.expovariate(1 / 150))), draw.randrange(20), draw.randrange(24)]
        score = sum(taste(seed, field, i) for field, i in enumerate(ids)) - 1
        clicked = draw.random() < 1 / (1 + math.exp(-score))
        yield [int(clicked), *ids]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    for day in range(1, arguments.days + 1):
        with open(os.path.join(arguments.out, f"day_{day}.txt"), "w", encoding="utf-8") as file:
            for row in rows(arguments.seed, day, arguments.rows):
                file.write(" ".join(map(str, row)) + "\n")


if __name__ == "__main__":
    main()
