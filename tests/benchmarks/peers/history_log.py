#!/usr/bin/env python3
"""A synthetic log with histories, for measuring the speed of models that read them (compare_models.py).

    history_log.py FOLDER [--rows 400000] [--test-rows 20000] [--items 500000] [--max-length 50]

A sample has three numbers, a user, an item with its category, four columns more, and the items and categories of its
history, which has 0 to --max-length steps, each length as likely. Ids are drawn by Zipf's law (the n-th most frequent
1/n as often as the first). The two labels, a click and a purchase after it, are random: nothing is learned here.
"""
import argparse
import os

import click_log
import numpy as np

FEATURES = {"user": 200000, "C1": 10000, "C2": 1000, "C3": 100, "C4": 10}
CATEGORIES = 5000


def zipf(rng, count, size):
    return (count ** rng.random(size)).astype(np.int64) - 1


def generate(args):
    rng = np.random.default_rng(args.seed)
    rows = args.rows + args.test_rows
    items = zipf(rng, args.items, rows)
    category_of = zipf(rng, CATEGORIES, args.items).astype(np.int32)
    sparse = np.stack([zipf(rng, FEATURES["user"], rows), items, category_of[items],
                       *(zipf(rng, FEATURES[name], rows) for name in ("C1", "C2", "C3", "C4"))], 1).astype(np.int32)
    history = zipf(rng, args.items, (rows, args.max_length)).astype(np.int32)
    lengths = rng.integers(0, args.max_length + 1, rows)
    clicks = rng.random(rows) < 0.25
    labels = np.stack([clicks, clicks & (rng.random(rows) < 0.2)], 1).astype(np.int32)
    os.makedirs(args.folder, exist_ok=True)
    cardinalities = [FEATURES["user"], args.items, CATEGORIES, *(FEATURES[f"C{i}"] for i in range(1, 5))]
    click_log.save(args.folder, labels, rng.random((rows, 3), np.float32), sparse, cardinalities, args.rows)
    names = ["user", "item", "category", "C1", "C2", "C3", "C4"]
    features = [click_log.Feature(name, name) for name in names] + [
        click_log.Feature("hist_" + name, name, True) for name in ("item", "category")]
    lists = {"hist_item": [steps[:length] for steps, length in zip(history, lengths)]}
    lists["hist_category"] = [category_of[steps] for steps in lists["hist_item"]]
    click_log.save_lists(args.folder, features, ["click", "purchase"], lists, args.rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--rows", type=int, default=400000)
    parser.add_argument("--test-rows", type=int, default=20000)
    parser.add_argument("--items", type=int, default=500000)
    parser.add_argument("--max-length", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    generate(parser.parse_args())


if __name__ == "__main__":
    main()
