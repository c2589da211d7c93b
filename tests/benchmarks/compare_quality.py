#!/usr/bin/env python3
"""Quality beside PyTorch on real logs: the same rows, keys, batches, model, optimizer and learning rate.

    pip install -r tests/benchmarks/peers/requirements.txt      # torch and numpy suffice
    compare_quality.py avazu=train.csv.gz taobao=UserBehavior.csv criteo_kaggle=train.txt.gz [--seeds 5]
                       [--models dlrm,wide_deep,deepfm,dcnv2,finalmlp] [--kept FILE]
    compare_quality.py movielens=movielens_100k_history.csv.gz --models dcnv2,din,bst,tbsm,mmoe,ple
    compare_quality.py taobao_histories=histories.csv --models din,bst,tbsm  # of peers/taobao_histories.py

NAME=TEXT: TEXT is a log (plain or .gz) for which deploy/jobs/NAME_MODEL.textproto is written, or NAME.textproto. The
model of the latter is one of --models, with the widths and the rate of deploy/jobs/criteo_MODEL.textproto; dlrm is its
own. Thermocline trains that job and scores the last tenth. peers/real_logs.py makes arrays of the same rows by the
rules of docs/formats.md, and peers/torch_models.py trains them with the same job: batch size, passes, widths, dropout,
learning rate and the distribution of initial values; only the random numbers differ.

That the rows are the same is checked first: the model of the first seed, exported and scored in PyTorch with the
keys of these arrays, must have the logloss that Thermocline found, to 1e-5. Printed: test AUC and logloss, mean and
standard deviation over the seeds, and the difference of the mean AUCs beside two standard errors of it.

With --kept, runs of PyTorch are kept in a file, and not repeated; --peer-only makes them alone.

With --precision BFLOAT16 the peer is not PyTorch but Thermocline itself, with products in that precision: same seeds,
same initial values. Two standard errors are then those of the difference seed by seed.
"""
import argparse
import json
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
    import job_text
    import numpy as np
    import real_logs
    import thermocline_torch
    import torch
except ModuleNotFoundError as error:
    sys.exit(f"compare_quality.py needs {error.name}: see peers/requirements.txt")


def job_of(name, model):
    """The job's fields, as a dictionary."""
    def read(job):
        with open(os.path.join(train_run.ROOT, "deploy", "jobs", f"{job}.textproto")) as file:
            return job_text.parse(file.read())
    # The Taobao log with histories is Taobao's.
    own = f"{name.partition('_histories')[0]}_{model}"
    if os.path.exists(os.path.join(train_run.ROOT, "deploy", "jobs", f"{own}.textproto")):
        return read(own)
    job = read(name)
    if model != "dlrm":
        del job["dlrm"]
        preset = read(f"criteo_{model}")
        job[model] = preset[model]
        job["train"]["learning_rate"] = preset["train"]["learning_rate"]
    return job


def train(args, job, data, folder, seed, precision="FLOAT32"):
    """[(auc, logloss)] of each task of one run, which leaves its model in `folder`/SEED.safetensors."""
    run_dir = os.path.join(folder, f"run-{os.path.basename(job)}-{precision}-{seed}")
    settings = [f"seed={seed}", f"precision={precision}", "checkpoint.at_end=true",
                f"cluster.worker_threads={args.cores}"]
    train_run.run([args.thermocline, "train", job, "--data", data, "--run-dir", run_dir] +
                  [flag for setting in settings for flag in ("--set", setting)])
    model = os.path.join(folder, f"{seed}.safetensors")
    train_run.run([args.thermocline, "checkpoint", "export", run_dir, model])
    result = train_run.read_json(os.path.join(run_dir, "summary.json"))
    return [(task["auc"], task["logloss"]) for task in result.get("tasks", [result])]


def score_export(folder, seed):
    """[(auc, logloss)] of each task of an exported model on the test rows of the arrays."""
    log = click_log.ClickLog(folder)
    dense, sparse, labels = log.split("test")
    model = thermocline_torch.ThermoclineModel.load(os.path.join(folder, f"{seed}.safetensors")).eval()
    keys, offsets, at = {}, {}, 0
    tables = list(dict.fromkeys(feature.table for feature in log.features))
    with np.load(os.path.join(folder, "keys.npz")) as by_id:
        for feature in log.features:
            ids = np.array(sparse[:, at:at + feature.columns])
            at += feature.columns
            of_table = by_id[f"arr_{tables.index(feature.table)}"]
            keys[feature.name] = torch.from_numpy(of_table[ids[ids >= 0]].view(np.int64))
            offsets[feature.name] = torch.from_numpy(np.r_[0, np.cumsum((ids >= 0).sum(1))])
    names = [feature["name"] for feature in model.config["features"]] if log.has_names else list(keys)
    with torch.no_grad():
        logits = model(torch.from_numpy(np.array(dense)), [keys[name] for name in names],
                       [offsets[name] for name in names]).numpy()
    columns = [log.labels.index(task["label"]) for task in model.config["tasks"]] if log.labels else [0]
    return [(click_log.auc(of, scores), click_log.logloss(of, scores)) for of, scores in
            zip(labels.reshape(len(labels), -1).T[columns].astype(np.float64),
                logits.reshape(len(labels), -1).T.astype(np.float64))]


def train_torch(args, job, folder, seed):
    """[(auc, logloss)] of each task of a run of PyTorch, or of the same one that was kept."""
    with open(job) as file:
        key = f"{os.path.basename(job)} seed {seed} {json.dumps(job_text.parse(file.read()))} torch {torch.__version__}"
    kept = train_run.read_json(args.kept) if args.kept and os.path.exists(args.kept) else {}
    if key not in kept:
        command = [sys.executable, os.path.join(PEERS, "torch_models.py"), folder, "--job", job, "--seed", str(seed),
                   "--tables", "one", "--threads", str(args.cores)]
        found = re.findall(r"auc=([0-9.]+) logloss=([0-9.]+)", output := train_run.run(command))
        if not found:
            sys.exit(f"{command}\nprinted:\n{output}")
        kept[key] = [(float(auc), float(logloss)) for auc, logloss in found]
        if args.kept:
            with open(args.kept, "w") as file:
                json.dump(kept, file, indent=1)
    return kept[key]


def compare(args, name, model, data, folder):
    """{label of a task, "" of the only one: {program: [(auc, logloss)] of each seed}}"""
    fields = job_of(name, model)
    job = os.path.join(folder, f"{name}_{model}.textproto")
    with open(job, "w") as file:
        file.write(job_text.to_text(fields))
    runs = {"Thermocline": [], args.peer: []}
    for seed in range(1, args.seeds + 1):
        if not args.peer_only:
            runs["Thermocline"].append(ours := train(args, job, data, folder, seed))
        if seed == 1 and not args.peer_only:
            exported = score_export(folder, seed)
            if np.abs(np.array(ours) - np.array(exported)).max() > 1e-5:
                sys.exit(f"{name}: the rows differ: Thermocline scores its model with AUC and logloss {ours}, "
                         f"PyTorch scores it with {exported}")
        runs[args.peer].append(train(args, job, data, folder, seed, args.precision) if args.precision
                               else train_torch(args, job, folder, seed))
        print(f"  {name} {model} seed {seed}   " + "   ".join(
            f"{program} " + " ".join(f"AUC {auc:.4f} logloss {logloss:.4f}" for auc, logloss in results[-1])
            for program, results in runs.items() if results), flush=True)
    labels = job_text.listed(fields["data"]["label"], "column") if len(runs[args.peer][0]) > 1 else [""]
    return {label: {program: [of[task] for of in results] for program, results in runs.items()}
            for task, label in enumerate(labels)}


def describe(name, folder):
    real = click_log.ClickLog(folder)
    print(f"{name}: {len(real.split('train')[2]):,} rows to train, {len(real.split('test')[2]):,} to score, "
          f"{len(real.features)} features, {sum(real.cardinalities):,} keys", flush=True)


def spread(values):
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values) if len(values) > 1 else 0:.4f}"


def print_row(args, name, model, runs):
    """What both found, and how far apart they are beside what chance makes of as many runs."""
    (our_aucs, our_losses), (peer_aucs, peer_losses) = (zip(*results) for results in runs.values())
    difference = statistics.mean(our_aucs) - statistics.mean(peer_aucs)
    samples = [[ours - peer for ours, peer in zip(our_aucs, peer_aucs)]] if args.precision else [our_aucs, peer_aucs]
    errors = [statistics.variance(aucs) / len(aucs) if len(aucs) > 1 else 0 for aucs in samples]
    print(f"| {name} | {model} | {spread(our_aucs)} | {spread(peer_aucs)} | {difference:+.4f} | "
          f"{2 * sum(errors) ** 0.5:.4f} | {spread(our_losses)} | {spread(peer_losses)} |")
    return abs(difference) <= max(args.allowed, 2 * sum(errors) ** 0.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", metavar="NAME=TEXT", nargs="+")
    parser.add_argument("--thermocline", default=f"{train_run.ROOT}/build/bin/thermocline")
    parser.add_argument("--models", default="dlrm", help="some of dlrm,wide_deep,deepfm,dcnv2,finalmlp")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--kept", metavar="FILE")
    parser.add_argument("--peer-only", action="store_true")
    parser.add_argument("--precision", help="compares Thermocline with itself in this precision")
    args = parser.parse_args()
    args.peer, args.allowed = (args.precision, 0.001) if args.precision else ("PyTorch", 0.005)
    logs = [log.partition("=")[::2] for log in args.logs]
    models = args.models.split(",")
    for name, data in logs:
        if name not in real_logs.FORMS or not os.path.exists(data):
            parser.error(f"{name}={data}: NAME is one of {', '.join(real_logs.FORMS)}, TEXT a file")
    print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f} before the runs")
    table = []
    for name, data in logs:
        with tempfile.TemporaryDirectory(prefix="compare_quality_") as folder:
            real_logs.convert(name, data, folder)
            describe(name, folder)
            table += [(name, f"{model}, {label}" if label else model, of_task) for model in models
                      for label, of_task in compare(args, name, model, data, folder).items()]
    if args.peer_only:
        return
    print(f"\n| log | model | AUC, Thermocline | AUC, {args.peer} | difference | 2 standard errors | "
          f"logloss, Thermocline | logloss, {args.peer} |\n|" + "---|" * 8)
    if not all([print_row(args, *row) for row in table]):
        sys.exit(f"a difference is beyond {args.allowed} and two standard errors")


if __name__ == "__main__":
    main()
