#!/usr/bin/env python3
"""What the exchange between workers moves in a step, on paper: by phase, and over which links.

    exchange_model.py [--workers 8] [--hosts 1] [--batch 65536] [--dim 128] [--distinct 0.4] ...
    exchange_model.py --check RUN_DIR --data LOG --batch 2048 --dim 16

The first prints, for a job, the bytes that a worker sends to others in each phase of a step, what
leaves its host, what servers get and send, and how long links of the given speeds take for that alone.

The second compares the formulas with what a run has counted. RUN_DIR is what `thermocline train` left,
with several workers; LOG the folder with train_sparse.npy that it trained on, whose slices' distinct
keys are counted. What can't be known without running, the share of the
requested keys that the cache holds, is taken from the phase of rows; the other phases are predicted.

In a step each of W workers has B samples with C categorical columns. u is the number of distinct keys in
them, h the share of these that are held, D the bytes of the dense parameters, e = (W - 1) / W the share
that belongs to others. A worker sends to all others together:

    keys              e u 12 + (W - 1) 4 C     a key is 8 bytes, and 4 for its lookups; a count a table
    plans             e u / 8 + (W - 1) (8 + C / 2)     a bit a key, whole bytes a table
    rows              e u h 4 dim
    gradients         e u h 4 dim
    dense gradients   e D + (W - 1) 8
    dense weights     e D
"""
import argparse
import array
import ast
import json
import math
import os
import sys

DENSE_BLOCK_FLOATS = 256
PHASES = ["keys", "plans", "rows", "gradients", "dense gradients", "dense weights"]


def dense_bytes(bottom, top, dim, columns, dense_inputs):
    """The size of the DLRM's weights and biases, each tensor in whole blocks."""
    vectors = columns + 1
    floats = 0
    for inputs, layers in ((dense_inputs, bottom + [dim]),
                           (dim + vectors * (vectors - 1) // 2, top + [1])):
        for outputs in layers:
            for tensor in (inputs * outputs, outputs):
                floats += math.ceil(tensor / DENSE_BLOCK_FLOATS) * DENSE_BLOCK_FLOATS
            inputs = outputs
    return 4 * floats


def sent(workers, columns, dim, keys, held, dense):
    """Bytes that one worker sends in a step, by phase. `keys`: distinct ones of its slice."""
    others = workers - 1
    share = others / workers
    rows = share * keys * held * 4 * dim
    return {
        "keys": share * keys * 12 + others * 8 * math.ceil(columns / 2),
        "plans": share * keys / 8 + others * (8 + columns / 2),
        "rows": rows,
        "gradients": rows,
        "dense gradients": share * dense + others * 8,
        "dense weights": share * dense,
    }


def read_npy(path):
    """A matrix of integers: (rows, columns, values)."""
    with open(path, "rb") as file:
        file.seek(8)
        header = ast.literal_eval(file.read(int.from_bytes(file.read(2), "little")).decode())
        values = array.array({"<i4": "i", "<i8": "q"}[header["descr"]])
        values.frombytes(file.read())
    return (*header["shape"], values)


def distinct_keys(args, workers, steps):
    """The mean number of distinct keys of a worker's slice of a step, and of columns."""
    rows, columns, values = read_npy(os.path.join(args.data, "train_sparse.npy"))
    total = 0
    for step in range(steps):
        begin = step * args.batch
        count = min(args.batch, rows - begin)
        for rank in range(workers):
            first, last = begin + rank * count // workers, begin + (rank + 1) * count // workers
            total += sum(len(set(values[first * columns + column:last * columns:columns]))
                         for column in range(columns))
    return total / (steps * workers), columns


def check(args):
    results = []
    while os.path.exists(path := os.path.join(args.check, f"worker-{len(results)}.json")):
        with open(path) as file:
            results.append(json.load(file))
    workers, steps = len(results), results[0]["steps"]
    if workers < 2:
        sys.exit(f"{args.check}: {workers} workers; the exchange is between several")
    keys, columns = distinct_keys(args, workers, steps)
    dense = dense_bytes(args.bottom, args.top, args.dim, columns, args.dense_inputs)
    measured = {}
    for phase in (phase for result in results for phase in result["exchange"]["phases"]):
        measured[phase["name"]] = measured.get(phase["name"], 0) + phase["bytes_sent"] / (steps * workers)
    held = 0
    if "rows" in measured:
        held = measured["rows"] / sent(workers, columns, args.dim, keys, 1, dense)["rows"]
    model = sent(workers, columns, args.dim, keys, held, dense)
    print(f"{workers} workers, {steps} steps of {args.batch}, dim {args.dim}: {keys:.0f} distinct keys a "
          f"worker and step, {held:.3f} of them held")
    print(f"{'sent by a worker, bytes a step':32} {'formula':>12} {'measured':>12}   ratio")
    for phase in PHASES:
        if phase not in measured:
            continue
        note = "   (gives the share held)" if phase == "rows" else ""
        print(f"{phase:32} {model[phase]:12.0f} {measured[phase]:12.0f}   "
              f"{measured[phase] / model[phase]:.4f}{note}")


def predict(args):
    per_worker = args.batch // args.workers
    keys = args.distinct * per_worker * args.columns
    dense = dense_bytes(args.bottom, args.top, args.dim, args.columns, args.dense_inputs)
    by_phase = sent(args.workers, args.columns, args.dim, keys, args.held, dense)
    total = sum(by_phase.values())
    on_host = args.workers // args.hosts
    leaving = (args.workers - on_host) / max(1, args.workers - 1)
    bypassed = keys * (1 - args.held) * (4 * args.dim + 12)
    print(f"{args.hosts} hosts x {on_host} workers, batch {args.batch}, {args.columns} columns of dim {args.dim}, "
          f"{keys:.0f} distinct keys a worker, {args.held:.2f} held, dense {dense / 1e6:.1f} MB")
    for phase in PHASES:
        print(f"  {phase:32} {by_phase[phase] / 1e6:10.2f} MB a step and worker")
    print(f"  {'all that a worker sends':32} {total / 1e6:10.2f} MB")
    print(f"  {'a worker, from servers; to them':32} {bypassed / 1e6:10.2f} MB each")
    without = keys * (4 * args.dim + 12)
    print(f"  {'the same without a cache':32} {without / 1e6:10.2f} MB each")
    print(f"  {'each of the servers, of all':32} {args.workers * bypassed / args.servers / 1e6:10.2f} MB each, "
          f"without a cache {args.workers * without / args.servers / 1e6:.2f} MB")
    copy_s = 2 * total / (args.device_gbyte * 1e9)
    print(f"  {args.device_gbyte:g} GB/s between device and host: {1e3 * copy_s:8.2f} ms for rows, "
          "gradients and weights both ways")
    if args.hosts > 1:
        out = on_host * (leaving * total + bypassed)
        print(f"  leaves a host: {out / 1e6:.1f} MB a step; link of {args.gbit:g} Gbit/s: "
              f"{1e3 * out * 8 / (args.gbit * 1e9):.2f} ms, without a cache "
              f"{1e3 * on_host * (leaving * 2 * by_phase['dense weights'] + without) * 8 / (args.gbit * 1e9):.2f} ms")
    through = on_host * total * (1 - leaving)
    print(f"  stays on a host: {through / 1e6:.1f} MB a step; at {args.local_gbyte:g} GB/s of all streams: "
          f"{1e3 * through / (args.local_gbyte * 1e9):.2f} ms")


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", metavar="RUN_DIR", help="compare with what this run has counted")
    parser.add_argument("--data", metavar="LOG", help="of --check: the folder with train_sparse.npy")
    parser.add_argument("--batch", type=int, default=65536, help="global")
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--bottom", type=numbers, default=[512, 256, 64], help="layers before the last, dim")
    parser.add_argument("--top", type=numbers, default=[512, 256], help="layers before the last, 1")
    parser.add_argument("--dense-inputs", type=int, default=13)
    parser.add_argument("--workers", type=int, default=8, help="of all hosts")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--servers", type=int, default=8)
    parser.add_argument("--columns", type=int, default=26)
    parser.add_argument("--distinct", type=float, default=0.4, help="keys of a slice / its lookups")
    parser.add_argument("--held", type=float, default=0.9, help="share of requested keys that caches hold")
    parser.add_argument("--gbit", type=float, default=100, help="of a host's link, each way, Gbit/s")
    parser.add_argument("--device-gbyte", type=float, default=25, help="between host and one device, each way, GB/s")
    parser.add_argument("--local-gbyte", type=float, default=8, help="all streams of one host together, GB/s")
    args = parser.parse_args()
    if args.check:
        if not args.data:
            parser.error("--check needs --data")
        return check(args)
    return predict(args)


if __name__ == "__main__":
    main()
