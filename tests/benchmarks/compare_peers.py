#!/usr/bin/env python3
"""Training speed and quality beside PyTorch and TensorFlow's parameter servers, on the same log; the model computed by
Thermocline itself, and by a script in PyTorch over its rows.

    pip install -r tests/benchmarks/peers/requirements.txt      # best in a virtual environment
    compare_peers.py LOG [--rounds 5] [--steps 160] [--scripts ...] [--peers ...] [-- FLAGS OF `thermocline train`]

LOG is a folder as `thermocline generate` writes it, or a file in Criteo's text form (plain or .gz), of
which such a folder is made first, with its last tenth as test rows. All programs read this folder,
train the DLRM of the Kaggle example with Adagrad from weights of the same distributions, and score the
same test rows. Thermocline runs one server and one worker process. All use the first --cores cores.

Programs take turns, so that a machine that slows down slows all of them down. Round n uses seed n.
A run's samples/s is the median over windows of 20 steps, without the first window; so neither
start-up nor compilation counts. Printed: the setup, every run, then for each program the median over
the rounds with [lowest highest], the ratio of Thermocline to it within each round (and that of its first script),
and test AUC and logloss (mean over the rounds, and how far the farthest is from it).
"""
import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile

import train_run

PEERS = {"torch": ("PyTorch, plain", ["torch_dlrm.py"]),
         "torch-expert": ("PyTorch, expert", ["torch_expert_dlrm.py"]),
         "torch-rpc": ("PyTorch RPC", ["torch_rpc_dlrm.py"]),
         "tf-ps": ("TensorFlow PS", ["tf_ps_dlrm.py"])}
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers")
SCRIPTS = {"dlrm": ("script", os.path.join(train_run.ROOT, "deploy", "python", "examples", "dlrm.py")),
           "no-model": ("script, no model", os.path.join(FOLDER, "no_model.py"))}


def train(args, seed, script=None):
    """One run of Thermocline, as a dict with samples_per_s, auc and logloss. script: what computes the model."""
    flags = []
    if script:
        command = json.dumps([args.python, script])
        flags = ["--clear", "dlrm", "--set", f"worker={{command: {command} threads: {args.cores}}}"]
    summary, _, _ = train_run.train(args, [
        "--set", f"train.batch_size={args.batch}", "--set", f"train.max_steps={args.steps}",
        "--set", f"default_table.init_scale={args.init}", "--set", f"seed={seed}", *flags])
    rates = summary["window_samples_per_s"]
    return {"samples_per_s": statistics.median(rates[1:] or rates), "auc": summary["auc"],
            "logloss": summary["logloss"], "versions": commit()}


def run_peer(args, script, seed):
    command = [args.python, os.path.join(FOLDER, script[0]), args.data, *script[1:],
               "--batch", str(args.batch), "--steps", str(args.steps), "--threads", str(args.cores),
               "--init", str(args.init), "--seed", str(seed)]
    output = train_run.run(command)
    found = re.search(r"^(\S+) samples_per_s=([0-9.]+) auc=([0-9.]+) logloss=([0-9.]+)$", output, re.M)
    if not found:
        sys.exit(f"{' '.join(command)}\nprinted no result, but:\n{output}")
    return {"versions": found[1].replace("=", " "), "samples_per_s": float(found[2]),
            "auc": float(found[3]), "logloss": float(found[4])}


def processor():
    with open("/proc/cpuinfo") as file:
        info = file.read()
    model = re.search(r"model name\s*: (.*)", info)
    isa = "AVX-512" if " avx512f " in info else "AVX2" if " avx2 " in info else "no AVX2"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model[1] if model else platform.processor()}, {isa}, {memory:.0f} GiB"


def commit():
    done = subprocess.run(["git", "-C", train_run.ROOT, "describe", "--always", "--dirty"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return f"commit {done.stdout.strip() or 'unknown'}"


def spread(values, digits=0):
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:,.{digits}f} [{low:,.{digits}f} {high:,.{digits}f}]"


def mean(values):
    middle = statistics.mean(values)
    return f"{middle:.4f} ± {max(abs(value - middle) for value in values):.4f}"


def print_table(runs, ours):
    """ours: the names of the runs to which the others are compared."""
    rates = {name: [run["samples_per_s"] for run in results] for name, results in runs.items()}

    def ratio(first, second):
        return "" if first == second else spread([a / b for a, b in zip(rates[first], rates[second])], 2)
    print(f"\n| {'':16} | {'samples/s':24} | " + "".join(f"{name + ' / it':17} | " for name in ours) +
          f"{'AUC':15} | {'logloss':15} | version |")
    print("|---" * (len(ours) + 5) + "|")
    for name, results in runs.items():
        ratios = "".join(f"{ratio(each, name):17} | " for each in ours)
        print(f"| {name:16} | {spread(rates[name]):24} | {ratios}{mean([r['auc'] for r in results])} | "
              f"{mean([r['logloss'] for r in results])} | {results[0]['versions']} |")


def compare(args):
    contestants = {"Thermocline": lambda seed: train(args, seed)}
    for script in args.scripts:
        name, path = SCRIPTS[script]
        contestants[name] = lambda seed, path=path: train(args, seed, path)
    ours = list(contestants)[:2]
    for peer in args.peers:
        name, script = PEERS[peer]
        contestants[name] = lambda seed, script=script: run_peer(args, script, seed)
    runs = {name: [] for name in contestants}
    for seed in range(1, args.rounds + 1):
        for name, run in contestants.items():
            result = run(seed)
            runs[name].append(result)
            print(f"round {seed}   {name:16} {result['samples_per_s']:9,.0f} samples/s   "
                  f"AUC {result['auc']:.4f}   logloss {result['logloss']:.4f}", flush=True)
    print_table(runs, ours)


def names_in(text):
    return text.split(",") if text else []


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    train_run.add_arguments(parser, rounds=5)
    parser.add_argument("--scripts", type=names_in, default=list(SCRIPTS),
                        help=f"some of {','.join(SCRIPTS)}; default: all")
    parser.add_argument("--peers", type=names_in, default=list(PEERS),
                        help=f"some of {','.join(PEERS)}; default: all")
    parser.add_argument("--python", default=sys.executable,
                        help="the interpreter that has the peers, and computes the scripts")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=160, help="0: all training rows once")
    parser.add_argument("--init", type=float, default=0.01, help="rows start uniform in [-INIT, INIT)")
    args = train_run.parse(parser)
    for flag, names, known in (("--peers", args.peers, PEERS), ("--scripts", args.scripts, SCRIPTS)):
        if unknown := set(names) - set(known):
            parser.error(f"{flag}: {', '.join(sorted(unknown))} is none of {', '.join(known)}")
    package = os.path.join(os.path.dirname(os.path.dirname(args.thermocline)), "python")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    cores = sorted(os.sched_getaffinity(0))[:args.cores]
    if len(cores) < args.cores:
        parser.error(f"--cores {args.cores}: this process may use {len(cores)}")
    os.sched_setaffinity(0, cores)

    print(f"machine   {processor()}; {args.cores} cores, load {os.getloadavg()[0]:.1f} before the runs")
    print(f"data      {args.data}, batch {args.batch}, {args.steps or 'all'} steps")
    print(f"job       {args.job} {' '.join(args.flags)}", flush=True)
    if os.path.isdir(args.data):
        return compare(args)
    with tempfile.TemporaryDirectory(prefix="click_log_") as folder:
        train_run.run([args.python, os.path.join(FOLDER, "click_log.py"), args.data, folder])
        args.data = folder
        compare(args)


if __name__ == "__main__":
    main()
