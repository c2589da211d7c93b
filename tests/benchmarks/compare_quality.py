#!/usr/bin/env python3
"""Quality beside PyTorch on real logs: the same rows, keys, batches, model, optimizer and learning rate.

    pip install -r tests/benchmarks/peers/requirements.txt      # torch and numpy suffice
    compare_quality.py avazu=train.csv.gz taobao=UserBehavior.csv criteo_kaggle=train.txt.gz [--seeds 5]

NAME=TEXT: TEXT is a log (plain or .gz) for which deploy/jobs/NAME.textproto is written. Thermocline trains
that job on it for one pass and scores the last tenth. peers/real_logs.py makes arrays of the same rows by the
rules of docs/formats.md, and peers/torch_dlrm.py trains them with the job's batch size, widths, learning rate
and distribution of initial rows; only the random numbers of the initial weights differ.

That the rows are the same is checked first: the model of the first seed, exported and scored in PyTorch with the
keys of these arrays, must have the logloss that Thermocline found, to 1e-5. Printed: test AUC and logloss,
mean and standard deviation over the seeds.
"""
import argparse
import os
import re
import statistics
import sys
import tempfile

import train_run

PEERS = os.path.join(train_run.ROOT, "tests", "benchmarks", "peers")
sys.path[:0] = [PEERS, os.path.join(train_run.ROOT, "deploy", "python")]
try:
    import click_log
    import numpy as np
    import real_logs
    import thermocline_torch
    import torch
except ModuleNotFoundError as error:
    sys.exit(f"compare_quality.py needs {error.name}: see peers/requirements.txt")


def job_settings(path):
    """What the peer needs to be told of a job."""
    with open(path) as file:
        text = file.read()

    def value(name, default):
        found = re.search(rf"\b{name}: *(\[[^]]*\]|[0-9.]+)", text)
        return re.sub(r"[\[\] ]", "", found[1]).replace(",", "-") if found else default
    return {"--batch": value("batch_size", ""), "--lr": value("base", ""), "--init": value("init_scale", "0.01"),
            "--dim": value("dim", "16"), "--top": value("top", ""), "--bottom": value("bottom", "1")}


def train(args, job, data, folder, seed):
    """(auc, logloss) of one run, which leaves its model in `folder`/SEED.safetensors."""
    run_dir = os.path.join(folder, f"run-{seed}")
    train_run.run([args.thermocline, "train", job, "--data", data, "--run-dir", run_dir, "--set", f"seed={seed}",
                   "--set", "checkpoint.at_end=true"])
    model = os.path.join(folder, f"{seed}.safetensors")
    train_run.run([args.thermocline, "checkpoint", "export", run_dir, model])
    result = train_run.read_json(os.path.join(run_dir, "summary.json"))
    return result["auc"], result["logloss"]


def score_export(folder, seed):
    """(auc, logloss) of an exported model on the test rows of the arrays."""
    log = click_log.ClickLog(folder)
    dense, _, labels = log.split("test")
    keys = np.load(os.path.join(folder, "keys.npy"))[-len(labels):].view(np.int64)
    model = thermocline_torch.ThermoclineDlrm.load(os.path.join(folder, f"{seed}.safetensors")).eval()
    offsets = [torch.arange(len(labels) + 1)] * keys.shape[1]
    with torch.no_grad():
        logits = model(torch.from_numpy(np.array(dense)),
                       [torch.from_numpy(np.array(keys[:, f])) for f in range(keys.shape[1])], offsets).numpy()
    return click_log.auc(labels, logits), click_log.logloss(labels.astype(np.float64), logits.astype(np.float64))


def train_peer(args, settings, folder, seed):
    command = [sys.executable, os.path.join(PEERS, "torch_dlrm.py"), folder, "--seed", str(seed),
               "--threads", str(args.cores)]
    for flag, value in settings.items():
        command += [flag, value]
    found = re.search(r"auc=([0-9.]+) logloss=([0-9.]+)", output := train_run.run(command))
    return (float(found[1]), float(found[2])) if found else sys.exit(f"{command}\nprinted:\n{output}")


def compare(args, name, data, folder):
    """{program: [(auc, logloss)] of each seed}"""
    job = os.path.join(train_run.ROOT, "deploy", "jobs", f"{name}.textproto")
    settings = job_settings(job)
    real_logs.convert(name, data, folder)
    log = click_log.ClickLog(folder)
    print(f"{name}: {len(log.split('train')[2]):,} rows to train, {len(log.split('test')[2]):,} to score, "
          f"{len(log.cardinalities)} features, {sum(log.cardinalities):,} keys; "
          + " ".join(f"{flag[2:]} {value}" for flag, value in settings.items()), flush=True)
    runs = {"Thermocline": [], "PyTorch": []}
    for seed in range(1, args.seeds + 1):
        runs["Thermocline"].append(ours := train(args, job, data, folder, seed))
        if seed == 1:
            exported = score_export(folder, seed)
            if max(abs(a - b) for a, b in zip(ours, exported)) > 1e-5:
                sys.exit(f"{name}: the rows differ: Thermocline scores its model with AUC and logloss {ours}, "
                         f"PyTorch scores it with {exported}")
        runs["PyTorch"].append(peer := train_peer(args, settings, folder, seed))
        print(f"  seed {seed}   AUC {ours[0]:.4f} {peer[0]:.4f}   logloss {ours[1]:.4f} {peer[1]:.4f}", flush=True)
    return runs


def print_row(name, program, results):
    columns = [f"{statistics.mean(values):.4f} ± {statistics.stdev(values) if len(values) > 1 else 0:.4f}"
               for values in zip(*results)]
    print(f"| {name} | {program} | {columns[0]} | {columns[1]} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", metavar="NAME=TEXT", nargs="+")
    parser.add_argument("--thermocline", default=f"{train_run.ROOT}/build/bin/thermocline")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    args = parser.parse_args()
    logs = [log.partition("=")[::2] for log in args.logs]
    for name, data in logs:
        if name not in real_logs.FORMS or not os.path.exists(data):
            parser.error(f"{name}={data}: NAME is one of {', '.join(real_logs.FORMS)}, TEXT a file")
    print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f} before the runs")
    table = []
    for name, data in logs:
        with tempfile.TemporaryDirectory(prefix="compare_quality_") as folder:
            table += [(name, program, results) for program, results in compare(args, name, data, folder).items()]
    print("\n| log | | test AUC | logloss |\n|---|---|---|---|")
    for row in table:
        print_row(*row)


if __name__ == "__main__":
    main()
