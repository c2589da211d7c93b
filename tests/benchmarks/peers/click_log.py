"""What every peer's script shares: command line, click log, initial weights, evaluation, result line.

A log is a folder as `thermocline generate` writes it: {train,test}_{dense,sparse,labels}.npy and
cardinalities.txt. Run as `click_log.py TEXT FOLDER` it makes one of a file in Criteo's text form. One with lists has
features.json, too.
"""
import argparse
import gzip
import json
import os
import sys
import time
from typing import NamedTuple

import numpy as np

WINDOW_STEPS = 20  # as Thermocline's train.metrics_every_steps
EVAL_BATCH = 4096


def parser(description):
    """The command line of all peers. Adagrad, its epsilon (1e-10) and the initial rule are fixed."""
    p = argparse.ArgumentParser(description=description,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("log", help="folder with {train,test}_{dense,sparse,labels}.npy")
    p.add_argument("--batch", type=int, default=2048)
    p.add_argument("--steps", type=int, default=0, help="default: all training rows once")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--dim", type=int, default=16)
    p.add_argument("--bottom", type=widths, default=[512, 256, 64], help="512-256-64; then dim")
    p.add_argument("--top", type=widths, default=[512, 256], help="512-256; then 1")
    p.add_argument("--lr", type=float, default=0.01)
    p.add_argument("--init", type=float, default=0.01, help="rows start uniform in [-INIT, INIT)")
    p.add_argument("--no-eval", action="store_true", help="do not score the test rows")
    return p


def add_precision(parser):
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of the matrix products")


def widths(text):
    return [int(width) for width in text.split("-")]


class Feature(NamedTuple):
    """One column of the sparse ids; or, for a list, as many neighbours as its longest value has. A shorter one has -1
    before its values."""
    name: str
    table: str
    is_list: bool = False
    columns: int = 1


def padded(values, offsets, columns):
    """A list's values in rows of an array, int32 [rows, columns], the last of them at the right."""
    array = np.full((len(offsets) - 1, columns), -1, np.int32)
    sizes = np.diff(offsets)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    array[rows, columns + np.arange(len(values)) - np.repeat(offsets[1:], sizes)] = values
    return array


class ClickLog:
    """The arrays of a folder: dense float32 [rows, numbers] (may be none), sparse int32 [rows, columns of all features],
    labels [rows], or [rows, labels] of a log with several. `cardinalities` are those of the features' tables, in the
    order in which the features name them. They are memory-mapped; a log with lists is in memory."""

    def __init__(self, folder):
        self.folder = os.path.abspath(folder)
        with open(f"{folder}/cardinalities.txt") as file:
            self.cardinalities = widths(file.read().strip())
        self.features = [Feature(f"C{i + 1}", f"C{i + 1}") for i in range(len(self.cardinalities))]
        self.labels = []  # Their names, where there are several.
        self.has_names = os.path.exists(f"{folder}/features.json")  # Else the features count as C1, C2, ...
        if self.has_names:
            with open(f"{folder}/features.json") as file:
                described = json.load(file)
            self.features, self.labels = [Feature(*of) for of in described["features"]], described["labels"]
        self._splits = {}

    def split(self, name):
        if name not in self._splits:
            dense, sparse, labels = (np.load(f"{self.folder}/{name}_{kind}.npy", mmap_mode="r")
                                     for kind in ("dense", "sparse", "labels"))
            lists = [padded(*(np.load(f"{self.folder}/{name}_{feature.name}_{kind}.npy") for kind in
                              ("values", "offsets")), feature.columns) for feature in self.features if feature.is_list]
            self._splits[name] = (dense, np.concatenate([sparse, *lists], 1) if lists else sparse,
                                  labels.reshape((-1, len(self.labels)) if self.labels else -1))
        return self._splits[name]

    def batches(self, name, size):
        """Copies of `size` rows each; the last one is shorter."""
        dense, sparse, labels = self.split(name)
        for at in range(0, len(labels), size):
            rows = slice(at, at + size)
            yield np.array(dense[rows]), sparse[rows].astype(np.int64), labels[rows].astype(np.float32)

    def training_batches(self, size, steps):
        """`steps` whole batches of the training rows, if there are as many; or all rows once, the last
        batch as short as it is."""
        rows = len(self.split("train")[2])
        count = min(steps, rows // size) if steps else -(-rows // size)
        for _, batch in zip(range(count), self.batches("train", size)):
            yield batch


def layer_sizes(args, log):
    """The (in, out) pairs of the bottom and the top MLP of a DLRM; without numbers there is no bottom."""
    numbers = log.split("train")[0].shape[1]
    vectors = len(log.cardinalities) + (1 if numbers else 0)
    bottom = [numbers, *args.bottom, args.dim] if numbers else []
    top = [args.dim + vectors * (vectors - 1) // 2, *args.top, 1]
    return list(zip(bottom, bottom[1:])), list(zip(top, top[1:]))


class Speed:
    """Samples a second: the median over windows of 20 steps, without the first window."""

    def __init__(self, batch):
        self.batch, self.steps, self.times = batch, 0, [time.perf_counter()]

    def step(self, wait=lambda: None):
        self.steps += 1
        if self.steps % WINDOW_STEPS == 0:
            wait()
            self.times.append(time.perf_counter())

    def median(self):
        if len(self.times) < 2:
            sys.exit(f"speed is measured over {WINDOW_STEPS} steps or more: give more rows, or --steps")
        seconds = np.diff(self.times)
        return WINDOW_STEPS * self.batch / np.median(seconds[1:] if len(seconds) > 1 else seconds)


def auc(labels, scores):
    """The probability that a click scores above a non-click; a tie counts half."""
    labels = np.asarray(labels) > 0.5
    _, group, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[group]
    clicks = labels.sum()
    return (ranks[labels].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(labels) - clicks))


def logloss(labels, logits):
    return np.mean(np.logaddexp(0, logits) - labels * logits)


def report(args, log, versions, samples_per_s, score, tasks=(0,)):
    """Prints the one line that compare_peers.py reads. score(dense, sparse) gives the logits of a batch, [samples] or
    [samples, tasks]; tasks: of which of the log's labels."""
    line = f"{versions} samples_per_s={samples_per_s:.0f}"
    if not args.no_eval:
        rows = len(log.split("test")[2])
        labels = log.split("test")[2].astype(np.float64).reshape(rows, -1)
        logits = np.concatenate([score(dense, sparse) for dense, sparse, _ in
                                 log.batches("test", EVAL_BATCH)]).astype(np.float64).reshape(rows, -1)
        for task, label in enumerate(tasks):
            scores = logits[:, task]
            line += f" auc={auc(labels[:, label], scores):.6f} logloss={logloss(labels[:, label], scores):.6f}"
    print(line, flush=True)


def convert(text, folder, test_share=0.1):
    """Criteo's text form (plain or .gz) to a folder; the last `test_share` of the rows are the test rows.

    Dense values are log(1 + max(x, 0)), 0 where empty. A column's ids count its values in the training
    rows by first appearance; 0 is an empty one, the last id any value that only test rows have.
    """
    with (gzip.open if text.endswith(".gz") else open)(text, "rt") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    first_test = int(len(rows) * (1 - test_share))
    labels = np.array([row[0] for row in rows], np.int32).reshape(-1, 1)
    dense = np.array([[max(float(x or 0), 0) for x in row[1:14]] for row in rows])
    dense = np.log1p(dense).astype(np.float32)
    sparse, cardinalities = np.empty((len(rows), 26), np.int32), []
    for column in range(26):
        ids = {"": 0}
        for row in rows[:first_test]:
            ids.setdefault(row[14 + column], len(ids))
        sparse[:, column] = [ids.get(row[14 + column], len(ids)) for row in rows]
        cardinalities.append(len(ids) + 1)
    save(folder, labels, dense, sparse, cardinalities, first_test)


def save(folder, labels, dense, sparse, cardinalities, first_test):
    """Writes the files of a ClickLog; the rows from `first_test` on are the test rows."""
    for name, part in (("train", slice(0, first_test)), ("test", slice(first_test, None))):
        for kind, array in (("dense", dense), ("sparse", sparse), ("labels", labels)):
            np.save(f"{folder}/{name}_{kind}.npy", array[part])
    with open(f"{folder}/cardinalities.txt", "w") as file:
        file.write("-".join(map(str, cardinalities)) + "\n")


def save_lists(folder, features, labels, lists, first_test):
    """Adds to save(): lists of ids [rows] for each Feature that is one, as npy files in Thermocline's form
    (docs/own-log.md), and features.json, whose features have the columns of the sparse ids, then the lists."""
    columns = {}
    for name, rows in lists.items():
        columns[name] = max(1, max(map(len, rows)))
        for split, part in (("train", rows[:first_test]), ("test", rows[first_test:])):
            values = np.concatenate([np.zeros(0, np.int32), *part]).astype(np.int32)
            np.save(f"{folder}/{split}_{name}_values.npy", values)
            np.save(f"{folder}/{split}_{name}_offsets.npy", np.cumsum([0, *map(len, part)]))
    with open(f"{folder}/features.json", "w") as file:
        json.dump({"features": [feature._replace(columns=columns.get(feature.name, 1)) for feature in features],
                   "labels": labels, "numbers": np.load(f"{folder}/train_dense.npy", mmap_mode="r").shape[1]}, file)


if __name__ == "__main__":
    convert(*sys.argv[1:])
