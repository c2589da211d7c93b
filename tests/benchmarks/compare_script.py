#!/usr/bin/env python3
"""The same DLRM both ways: trained by the worker itself, and by a script in PyTorch over the package `thermocline`.

    compare_script.py train.txt.gz [--optimizer adagrad=0.01:0.1 --optimizer sgd=0.1] [-- --set train.max_steps=100]

Both runs read the log (Criteo's form) by deploy/jobs/criteo_kaggle.textproto, so they have the same batches, and the
servers make the same initial rows for both. The script (this file, started by the worker with --as-script) begins with
the dense values that the native job begins with: an export of it after one step whose learning rate is too small to
change any of them. What is left is the order in which sums are rounded. How much a model makes of a rounding is shown by
a second run of the script, whose initial dense values are the next greater float32 each: one unit in the last place.

Printed for each optimizer: the training loss of the last steps, test AUC and logloss of both, and how far the rows
and the dense values of the two models are from each other after the pass (the largest difference, and the root of the
mean square, with the root of the mean square of the native values beside it).
"""
import argparse
import json
import os
import sys
import tempfile

import train_run

sys.path.append(os.path.join(train_run.ROOT, "deploy", "python"))
try:
    import numpy as np
    import thermocline_torch
    import torch
except ModuleNotFoundError as error:
    sys.exit(f"compare_script.py needs {error.name}: see peers/requirements.txt")

JOB = os.path.join(train_run.ROOT, "deploy", "jobs", "criteo_kaggle.textproto")
# A step of this size changes no float32 value that is not 0 or as small itself.
NO_LEARNING_RATE = "1e-30"
OPTIMIZERS = {"adagrad": torch.optim.Adagrad, "sgd": torch.optim.SGD}


def linears(module):
    return [layer for layer in module if isinstance(layer, torch.nn.Linear)]


def dense_tensors(net):
    """{name in an export: parameter} of the model of deploy/python/examples/dlrm.py; weights as [out, in]."""
    return {f"{part}.{i}.{kind}": getattr(layer, kind) for part in ("bottom", "top")
            for i, layer in enumerate(linears(getattr(net, part))) for kind in ("weight", "bias")}


def train_as_script(args):
    """The script of the job."""
    sys.path.insert(0, os.path.join(train_run.ROOT, "deploy", "python", "examples"))
    import dlrm
    import thermocline
    from torch.nn import functional as F
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    name, rate, accumulator = args.optimizer[0]
    options = {"initial_accumulator_value": accumulator} if accumulator else {}
    with thermocline.worker() as run:
        net = dlrm.Dlrm(run.embeddings(), len(run.job.numeric))
        initial, _ = thermocline_torch.read_safetensors(args.initial)
        with torch.no_grad():
            for key, parameter in dense_tensors(net).items():
                value = torch.from_numpy(np.array(initial[key]))
                value = torch.nextafter(value, torch.tensor(float("inf"))) if args.nudge else value
                parameter.copy_(value.T if value.dim() == 2 else value)
        opt = OPTIMIZERS[name](net.parameters(), lr=rate, **options)
        run.track(net=net, opt=opt)
        for batch in run.batches(evaluate=net):
            loss = F.binary_cross_entropy_with_logits(net(batch), batch.label)
            # The native worker divides by the size of a full batch, also in the shorter last one.
            (loss * (batch.size / run.job.batch_size)).backward()
            opt.step()
            opt.zero_grad()
            run.step(loss)
        run.evaluate(net)
        np.savez(args.dense, **{key: (value.T if value.dim() == 2 else value).detach().numpy()
                                for key, value in dense_tensors(net).items()})


def train(args, run_dir, flags):
    """(summary, tensors of the export) of one run."""
    train_run.run([args.thermocline, "train", JOB, "--data", args.data, "--run-dir", run_dir,
                   "--set", "cluster.worker_threads=1", *flags])
    export = run_dir + ".safetensors"
    train_run.run([args.thermocline, "checkpoint", "export", run_dir, export])
    return train_run.read_json(os.path.join(run_dir, "summary.json")), thermocline_torch.read_safetensors(export)[0]


def last_loss(run_dir):
    with open(os.path.join(run_dir, "metrics.jsonl")) as file:
        events = [json.loads(line) for line in file]
    return [event["loss"] for event in events if event["event"] == "progress"][-1]


def difference(pairs):
    """(largest difference, its root mean square, root mean square of the first) of pairs of arrays."""
    most, squares, first_squares, count = 0.0, 0.0, 0.0, 0
    for first, second in pairs:
        apart = first.astype(np.float64) - second
        most = max(most, float(np.abs(apart).max(initial=0)))
        squares += float((apart ** 2).sum())
        first_squares += float((first.astype(np.float64) ** 2).sum())
        count += apart.size
    return most, (squares / count) ** 0.5, (first_squares / count) ** 0.5


def rows_of(tensors):
    """{table: (keys in ascending order, their rows)}"""
    found = {}
    for name in tensors:
        if name.endswith(".keys"):
            table = name[:-len(".keys")]
            order = np.argsort(tensors[name])
            found[table] = (tensors[name][order], tensors[table + ".rows"][order])
    return found


def apart(first, second):
    """({rows and dense values of two runs: difference()}) of (tensors of an export, dense values) each."""
    rows, others = rows_of(first[0]), rows_of(second[0])
    for table, (keys, _) in rows.items():
        if not np.array_equal(keys, others[table][0]):
            sys.exit(f"two runs have rows of different keys in the table '{table}'")
    return {"rows": difference((rows[table][1], others[table][1]) for table in rows),
            "dense": difference((first[1][key], second[1][key]) for key in second[1].files)}


def compare(args, setting, folder):
    name, rate, accumulator = setting
    text = f"{name} {{{f'initial_accumulator: {accumulator}' if accumulator else ''}}}"
    optimizers = ["--set", f"default_table.optimizer={{{text}}}", "--set", f"dense_optimizer={{{text}}}"]
    rates = ["--set", f"train.learning_rate.base={rate}", *args.flags]
    path = os.path.join(folder, name)
    train(args, path + "-initial", [*optimizers, "--set", "train.max_steps=1",
                                    "--set", f"train.learning_rate.base={NO_LEARNING_RATE}"])

    def of_script(label, *flags):
        dense = f"{path}-{label}.npz"
        command = json.dumps([sys.executable, os.path.abspath(__file__), args.data, "--as-script",
                              "--optimizer", f"{name}={rate}:{accumulator}",
                              "--initial", path + "-initial.safetensors", "--dense", dense, *flags])
        summary, tensors = train(args, f"{path}-{label}", [
            *optimizers[:2], "--clear", "dlrm", "--set", f"worker={{command: {command} threads: 1}}", *rates])
        return summary, last_loss(f"{path}-{label}"), (tensors, np.load(dense))

    native, native_tensors = train(args, path + "-native", [*optimizers, *rates])
    script, script_loss, script_values = of_script("script")
    nudged, nudged_loss, nudged_values = of_script("nudged", "--nudge")
    return {"name": f"{name} {rate}" + (f", initial accumulator {accumulator}" if accumulator else ""),
            "steps": (native["steps"], script["steps"]),
            "loss": (last_loss(path + "-native"), script_loss, nudged_loss),
            "auc": (native["auc"], script["auc"], nudged["auc"]),
            "logloss": (native["logloss"], script["logloss"], nudged["logloss"]),
            "native and script": apart((native_tensors, native_tensors), script_values),
            "script and nudged": apart(script_values, nudged_values)}


def print_result(result):
    print(f"\n{result['name']}: {result['steps'][0]:,} steps natively, {result['steps'][1]:,} by the script")
    print("| | native | script | apart | script, nudged | apart from script |\n|---|---|---|---|---|---|")
    for figure, label in (("loss", "training loss, last steps"), ("auc", "test AUC"), ("logloss", "test logloss")):
        native, script, nudged = result[figure]
        print(f"| {label} | {native:.6f} | {script:.6f} | {abs(native - script):.1e} | {nudged:.6f} | "
              f"{abs(nudged - script):.1e} |")
    for pair in ("native and script", "script and nudged"):
        for figure in ("rows", "dense"):
            most, root, of_first = result[pair][figure]
            print(f"{pair}, {figure}: at most {most:.1e} apart, root mean square {root:.1e} (of the values {of_first:.1e})")
    sys.stdout.flush()


def optimizer(text):
    """(name, learning rate, initial accumulator) of NAME=RATE or NAME=RATE:ACCUMULATOR."""
    name, _, numbers = text.partition("=")
    rate, _, accumulator = numbers.partition(":")
    if name not in OPTIMIZERS:
        raise argparse.ArgumentTypeError(f"'{name}' is none of {', '.join(OPTIMIZERS)}")
    return name, float(rate), float(accumulator or 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimizer", metavar="NAME=RATE[:ACCUMULATOR]", type=optimizer, action="append",
                        help="default: sgd=0.1, adagrad=0.01:0.1 and adagrad=0.01")
    parser.add_argument("--as-script", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--initial", help=argparse.SUPPRESS)
    parser.add_argument("--nudge", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--dense", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="prints one line of JSON an optimizer")
    train_run.add_arguments(parser, 1)
    args = train_run.parse(parser) if "--as-script" not in sys.argv else parser.parse_args()
    if args.as_script:
        train_as_script(args)
        return
    with tempfile.TemporaryDirectory(prefix="compare_script_") as folder:
        for number, setting in enumerate(args.optimizer or [("sgd", 0.1, 0.0), ("adagrad", 0.01, 0.1),
                                                            ("adagrad", 0.01, 0.0)]):
            run_folder = os.path.join(folder, str(number))
            os.mkdir(run_folder)
            result = compare(args, setting, run_folder)
            print(json.dumps(result)) if args.json else print_result(result)


if __name__ == "__main__":
    main()
