#!/usr/bin/env python3
"""Taobao's user behaviour log as labelled rows with histories, for deploy/jobs/taobao_din.textproto and taobao_tbsm.

    taobao_histories.py UserBehavior.csv OUT.csv [--negatives 1] [--max-length 20] [--seed 1]     both plain or .gz

The log has no label of its own: a row asks whether an item is the next one of a user. Each event of a user with events
before it makes a row with label 1, and then --negatives rows with label 0, whose item is that of an event drawn from the
whole log: so an item is as likely in a row with label 0 as in one with label 1, and only the history tells them apart.
hist_item and hist_category are lists: the last --max-length events of the user before this one, oldest first. The rows
are in the order of time, so that the last tenth of them is the latest. The same log and --seed give the same bytes.
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


def labelled_rows(events, negatives, max_length, seed):
    """(time, user, item, category, hist_item, hist_category, label) of each row."""
    rng = random.Random(seed)
    histories = collections.defaultdict(lambda: collections.deque(maxlen=max_length))
    for time, user, item, category in events:
        history = histories[user]
        if history:
            lists = tuple("|".join(values) for values in zip(*history))
            others = ((item, category) for _, _, item, category in iter(lambda: rng.choice(events), None))
            drawn = itertools.islice((other for other in others if other[0] != item), negatives)
            for label, candidate in [(1, (item, category)), *((0, other) for other in drawn)]:
                yield (time, user, *candidate, *lists, label)
        history.append((item, category))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("log")
    parser.add_argument("out")
    parser.add_argument("--negatives", type=int, default=1)
    parser.add_argument("--max-length", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    events = read_events(args.log)
    if args.negatives and len({item for _, _, item, _ in events}) < 2:
        parser.error(f"{args.log} has fewer than two items: there is none to draw")
    with opened(args.out, "w") as out:
        out.write("time,user,item,category,hist_item,hist_category,label\n")
        for row in labelled_rows(events, args.negatives, args.max_length, args.seed):
            out.write(",".join(map(str, row)) + "\n")


if __name__ == "__main__":
    main()
