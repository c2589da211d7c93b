#!/usr/bin/env python3
"""Taobao's user behaviour log as labelled rows with histories, for the jobs deploy/jobs/taobao_din, _bst and _tbsm.

    taobao_histories.py UserBehavior.csv OUT.csv [--negatives 1] [--max-length 20] [--block 1000] [--seed 1]

The log has no label of its own: a row asks whether an item is the next one of a user. Each event of a user with events
before it makes a row with label 1, and then --negatives rows with label 0, with the items of other such events, those
of the same block of --block neighbours in time, each once. So an item by itself says nothing: it is as often in rows
with label 0 as in rows with label 1, at any time. (Items of the whole log would do so: most are new when they come.)
hist_item and hist_category are lists: the last --max-length events of the user before this one, oldest first. The rows
are in the order of time, so that the last tenth of them is the latest. The same log and --seed give the same text. Both
files may be .gz.
"""
import argparse
import collections
import gzip
import itertools
import random


def opened(path, mode):
    return gzip.open(path, mode + "t", newline="") if path.endswith(".gz") else open(path, mode, newline="")


def read_events(path):
    """(time, user, item, category) of all rows, in the order of time, else of the log."""
    with opened(path, "r") as file:
        events = [(int(time), user, item, category)
                  for user, item, category, _, time in (line.rstrip("\r\n").split(",") for line in file)]
    return sorted(events, key=lambda event: event[0])


def with_histories(events, max_length):
    """((time, user), (item, category), (hist_item, hist_category)) of the events of users with events before them."""
    histories = collections.defaultdict(lambda: collections.deque(maxlen=max_length))
    for time, user, item, category in events:
        history = histories[user]
        if history:
            yield (time, user), (item, category), tuple("|".join(values) for values in zip(*history))
        history.append((item, category))


def labelled_rows(events, negatives, max_length, block, seed):
    """(time, user, item, category, hist_item, hist_category, label) of each row."""
    rng = random.Random(seed)
    samples = with_histories(events, max_length)
    while of_block := list(itertools.islice(samples, block)):
        others = [rng.sample(of_block, len(of_block)) for _ in range(negatives)]
        for (of_user, item, lists), *drawn in zip(of_block, *others):
            yield *of_user, *item, *lists, 1
            for _, other, _ in drawn:
                if other[0] != item[0]:
                    yield *of_user, *other, *lists, 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log")
    parser.add_argument("out")
    parser.add_argument("--negatives", type=int, default=1)
    parser.add_argument("--max-length", type=int, default=20)
    parser.add_argument("--block", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with opened(args.out, "w") as out:
        out.write("time,user,item,category,hist_item,hist_category,label\n")
        for row in labelled_rows(read_events(args.log), args.negatives, args.max_length, args.block, args.seed):
            out.write(",".join(map(str, row)) + "\n")


if __name__ == "__main__":
    main()
