#!/usr/bin/env python3
"""Three public logs as the arrays that the peers' scripts read, with the keys that their job files give.

    real_logs.py criteo_kaggle|avazu|taobao TEXT FOLDER      TEXT: plain or .gz

A column of sparse ids counts the distinct keys of its feature in all rows, in their order; so a key that
only test rows have is a row of its own that training never reaches, as in Thermocline. keys.npy has the
keys themselves, uint64 [rows, features], by docs/formats.md ("Described text"): compare_quality.py feeds
them to an exported model, whose scores show that both programs see the same rows.
"""
import csv
import gzip
import os
import sys
from typing import Callable, Dict, List, NamedTuple, Tuple

import click_log
import numpy as np

MISSING = 2**64 - 1
MASK = MISSING


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def hex_key(text):
    return int(text, 16) if text else MISSING


def integer_key(text):
    return int(text) & MASK if text else MISSING


def string_key(text):
    data = text.encode()
    h = mix(len(data))
    for at in range(0, len(data), 8):
        h = mix(h ^ int.from_bytes(data[at:at + 8], "little"))
    return MISSING if not data else 0 if h == MISSING else h


def cross_key(keys, buckets=0):
    h = mix(len(keys))
    for key in keys:
        h = mix(h ^ key)
    h = 0 if h == MISSING else h
    return h % buckets if buckets else h


class Form(NamedTuple):
    """A log's text. A feature's keys are made of one column's text, or of several features' keys."""
    separator: str
    columns: List[str]  # [] where the first line names them.
    label: Callable[[Dict[str, str]], bool]
    numbers: List[str]
    features: List[Tuple[str, Callable[[str], int]]]  # (column, key of its text)
    crosses: List[Tuple[List[int], int]] = []  # (places in `features`, buckets)


def of(key, *columns):
    return [(column, key) for column in columns]


CRITEO = ["label"] + [f"I{i}" for i in range(1, 14)] + [f"C{i}" for i in range(1, 27)]
# As the features of deploy/jobs/NAME.textproto.
FORMS = {
    "criteo_kaggle": Form("\t", CRITEO, lambda row: row["label"] == "1", CRITEO[1:14],
                          of(hex_key, *CRITEO[14:])),
    "avazu": Form(",", [], lambda row: row["click"] == "1", [],
                  of(lambda text: string_key(text[6:]), "hour")
                  + of(integer_key, "C1", "banner_pos", *[f"C{i}" for i in range(14, 22)])
                  + of(hex_key, "site_id", "site_domain", "site_category", "app_id", "app_domain",
                       "app_category", "device_id", "device_ip", "device_model")
                  + of(integer_key, "device_type", "device_conn_type"),
                  [([11, 14], 1000000)]),
    "taobao": Form(",", ["user", "item", "category", "behaviour", "time"],
                   lambda row: row["behaviour"] in ("cart", "fav", "buy"), [],
                   of(integer_key, "user", "item", "category"), [([0, 2], 0)]),
}


def read(form, text):
    """(labels int32 [rows], dense float32 [rows, numbers], keys uint64 [rows, features])"""
    labels, numbers, keys = [], [], []
    with (gzip.open if text.endswith(".gz") else open)(text, "rt", newline="") as file:
        for row in csv.DictReader(file, form.columns or None, delimiter=form.separator):
            labels.append(form.label(row))
            numbers.append([float(row[column] or 0) for column in form.numbers])
            of_row = [key(row[column]) for column, key in form.features]
            keys.append(of_row + [cross_key([of_row[i] for i in places], buckets)
                                  for places, buckets in form.crosses])
    numbers = np.array(numbers, np.float64).reshape(len(labels), len(form.numbers))
    return (np.array(labels, np.int32), np.log1p(np.maximum(numbers, 0)).astype(np.float32),
            np.array(keys, np.uint64))


def convert(name, text, folder, test_share=0.1):
    """Writes the arrays of ClickLog, and keys.npy; the last `test_share` of the rows are the test rows."""
    labels, dense, keys = read(FORMS[name], text)
    sparse, cardinalities = np.empty(keys.shape, np.int32), []
    for column in range(keys.shape[1]):
        distinct, sparse[:, column] = np.unique(keys[:, column], return_inverse=True)
        cardinalities.append(len(distinct))
    first_test = int(len(labels) * (1 - test_share))
    click_log.save(folder, labels, dense, sparse, cardinalities, first_test)
    np.save(os.path.join(folder, "keys.npy"), keys)


if __name__ == "__main__":
    convert(*sys.argv[1:])
