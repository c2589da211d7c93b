#!/usr/bin/env python3
"""Public logs as the arrays that the peers' scripts read, with the keys that their job files give.

    real_logs.py criteo_kaggle|avazu|taobao|movielens|taobao_histories TEXT FOLDER      TEXT: plain or .gz

taobao_histories is a log that taobao_histories.py made of Taobao's. A column of sparse ids counts the distinct keys of
its table in all rows, in their order; so a key that only test rows have is a row of its own that training never
reaches, as in Thermocline. keys.npy has the keys themselves, uint64, by docs/formats.md ("Described text"), in the
places of their ids: compare_quality.py feeds them to an exported model, whose scores show that both programs see the
same rows.
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
    tables: Dict[str, str] = {}  # Of a list whose table is a feature's.
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
    """(labels int32 [rows] or [rows, labels], dense float32 [rows, numbers], keys uint64 [rows, features],
    keys uint64 of each list [rows, its longest], MISSING before the others)"""
    labels, numbers, keys, lists = [], [], [], []
    with (gzip.open if text.endswith(".gz") else open)(text, "rt", newline="") as file:
        for row in csv.DictReader(file, form.columns or None, delimiter=form.separator):
            labels.append(form.label(row))
            numbers.append([float(row[column] or 0) for column in form.numbers])
            of_row = [key(row[column]) for column, key in form.features]
            keys.append(of_row + [cross_key([of_row[i] for i in places], buckets)
                                  for places, buckets in form.crosses])
            lists.append([[key(value) for value in row[column].split("|")] if row[column] else []
                          for column, key in form.lists])
    numbers = np.array(numbers, np.float64).reshape(len(labels), len(form.numbers))
    return (np.array(labels, np.int32), np.log1p(np.maximum(numbers, 0)).astype(np.float32),
            np.array(keys, np.uint64), [padded(of_rows) for of_rows in zip(*lists)])


def padded(lists):
    array = np.full((len(lists), max(map(len, lists))), MISSING, np.uint64)
    for row, values in zip(array, lists):
        row[len(row) - len(values):] = values
    return array


def ids_of(keys, lists, form):
    """(ids int32 [rows, features and the columns of all lists], -1 where a list has no value; keys likewise;
    click_log.Feature of each feature and list; cardinalities of the tables)"""
    names = [column for column, _ in form.features] + [f"cross{i}" for i, _ in enumerate(form.crosses)]
    columns = {name: keys[:, i:i + 1] for i, name in enumerate(names)}
    columns.update((column, of_list) for (column, _), of_list in zip(form.lists, lists))
    features = [click_log.Feature(name, form.tables.get(name, name), array.shape[1], len(names) <= i)
                for i, (name, array) in enumerate(columns.items())]
    keys = np.concatenate(list(columns.values()), axis=1)
    ids, cardinalities = np.empty(keys.shape, np.int32), []
    for table in dict.fromkeys(feature.table for feature in features):
        is_here = np.repeat([feature.table == table for feature in features], [feature.columns for feature in features])
        is_padding = np.repeat([feature.is_list for feature in features], [feature.columns for feature in features])
        of_table = keys[:, is_here]
        is_value = (of_table != MISSING) | ~is_padding[is_here]
        distinct, places = np.unique(of_table[is_value], return_inverse=True)
        of_ids = np.full(of_table.shape, -1, np.int32)
        of_ids[is_value] = places
        ids[:, is_here] = of_ids
        cardinalities.append(len(distinct))
    return ids, keys, features, cardinalities


def convert(name, text, folder, test_share=0.1):
    """Writes the arrays of ClickLog, and keys.npy; the last `test_share` of the rows are the test rows."""
    form = FORMS[name]
    labels, dense, keys, lists = read(form, text)
    ids, keys, features, cardinalities = ids_of(keys, lists, form)
    first_test = int(len(labels) * (1 - test_share))
    click_log.save(folder, labels, dense, ids, cardinalities, first_test)
    if form.lists:
        click_log.save_features(folder, features, form.labels)
    np.save(os.path.join(folder, "keys.npy"), keys)


if __name__ == "__main__":
    convert(*sys.argv[1:])
