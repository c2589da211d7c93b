#!/usr/bin/env python3
"""Public logs as the arrays that the peers' scripts read, with the keys that their job files give.

    real_logs.py criteo_kaggle|avazu|taobao|movielens|taobao_histories TEXT FOLDER      TEXT: plain or .gz

taobao_histories is a log that taobao_histories.py made of Taobao's. Ids count the distinct keys of their table in all
rows, in their order; so a key that only test rows have is a row of its own that training never reaches, as in
Thermocline. keys.npz has of each table the keys by id, uint64, by docs/formats.md ("Described text"):
compare_quality.py feeds them to an exported model, whose scores show that both programs see the same rows.
"""
import csv
import gzip
import os
import sys
from typing import Callable, Dict, List, NamedTuple, Tuple, Union

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
    label: Callable[[Dict[str, str]], Union[bool, List[bool]]]
    numbers: List[str]
    features: List[Tuple[str, Callable[[str], int]]]  # (column, key of its text)
    crosses: List[Tuple[List[int], int]] = []  # (places in `features`, buckets)
    lists: List[Tuple[str, Callable[[str], int]]] = []  # As `features`, of each value between "|".
    tables: Dict[str, str] = {}  # Where a list reads the table of a feature.
    labels: List[str] = []  # Their names, where there are several.


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
    "movielens": Form(",", [], lambda row: [row["like"] == "1", row["top"] == "1"], ["age"],
                      of(integer_key, "user", "item") + of(string_key, "gender", "occupation", "zip", "year"),
                      lists=of(string_key, "genres") + of(integer_key, "hist_item") + of(string_key, "hist_year"),
                      tables={"hist_item": "item", "hist_year": "year"}, labels=["like", "top"]),
    "taobao_histories": Form(",", [], lambda row: row["label"] == "1", [],
                             of(integer_key, "user", "item", "category"),
                             lists=of(integer_key, "hist_item", "hist_category"),
                             tables={"hist_item": "item", "hist_category": "category"}),
}


def read(form, text):
    """(labels int32 [rows] or [rows, labels], dense float32 [rows, numbers], {feature: keys uint64 [rows]},
    {list: keys uint64 of each row})"""
    labels, numbers, keys, lists = [], [], [], []
    with (gzip.open if text.endswith(".gz") else open)(text, "rt", newline="") as file:
        for row in csv.DictReader(file, form.columns or None, delimiter=form.separator):
            labels.append(form.label(row))
            numbers.append([float(row[column] or 0) for column in form.numbers])
            of_row = [key(row[column]) for column, key in form.features]
            keys.append(of_row + [cross_key([of_row[i] for i in places], buckets)
                                  for places, buckets in form.crosses])
            lists.append([np.array([key(value) for value in row[column].split("|") if value], np.uint64)
                          for column, key in form.lists])
    numbers = np.array(numbers, np.float64).reshape(len(labels), len(form.numbers))
    names = [column for column, _ in form.features] + [f"cross {i}" for i, _ in enumerate(form.crosses)]
    return (np.array(labels, np.int32), np.log1p(np.maximum(numbers, 0)).astype(np.float32),
            dict(zip(names, np.array(keys, np.uint64).T)),
            {column: list(of_rows) for (column, _), of_rows in zip(form.lists, zip(*lists))})


def convert(name, text, folder, test_share=0.1):
    """Writes the arrays of ClickLog, and keys.npz; the last `test_share` of the rows are the test rows."""
    form = FORMS[name]
    labels, dense, keys, lists = read(form, text)
    features = [click_log.Feature(of, form.tables.get(of, of), of in lists) for of in [*keys, *lists]]
    by_id = {table: np.unique(np.concatenate([of for feature in features if feature.table == table for of in
                                              ([keys[feature.name]] if feature.name in keys else lists[feature.name])]))
             for table in dict.fromkeys(feature.table for feature in features)}
    ids = {of: np.searchsorted(by_id[of], column).astype(np.int32) for of, column in keys.items()}
    first_test = int(len(labels) * (1 - test_share))
    click_log.save(folder, labels, dense, np.stack(list(ids.values()), 1), list(map(len, by_id.values())), first_test)
    if lists:
        id_lists = {of: [np.searchsorted(by_id[form.tables.get(of, of)], row) for row in rows]
                    for of, rows in lists.items()}
        click_log.save_lists(folder, features, form.labels, id_lists, first_test)
    np.savez(os.path.join(folder, "keys.npz"), *by_id.values())


if __name__ == "__main__":
    convert(*sys.argv[1:])
