#!/usr/bin/env python3
"""Training speed and quality beside PyTorch and TensorFlow's parameter servers, on the same log; the model computed by
Thermocline itself, and by a script in PyTorch over its rows.

    pip install -r tests/benchmarks/peers/requirements.txt      # best in a virtual environment
    bazel build //kernels:kernels_benchmark                     # what this machine can do at most
    compare_peers.py LOG [--rounds 5] [--steps 160] [--precisions fp32,bf16] [--scripts ...] [--peers ...]
                     [-- FLAGS OF `thermocline train`]

LOG is a folder as `thermocline generate` writes it, or a file in Criteo's text form (plain or .gz), of
which such a folder is made first, with its last tenth as test rows. All programs read this folder,
train the DLRM of the Kaggle example with Adagrad from weights of the same distributions, and score the
same test rows. Thermocline runs one server and one worker process. All use the first --cores cores.

Programs take turns, so that a machine that slows down slows all of them down. Round n uses seed n.
A run's samples/s is the median over windows of 20 steps, without the first window; so neither
start-up nor compilation counts. Thermocline's own model and the peers but PyTorch RPC train in each of --precisions,
which is that of the matrix products.

Printed: the setup; the machine's limits, by kernels_benchmark and by oneDNN in PyTorch over the products of this model;
every run; then for each program the median over the rounds with [lowest highest], the share of the limit that its
precision has (a sample's products over what the cores can multiply and add), and test AUC and logloss (mean over the
rounds, and how far the farthest is from it). The ratios of Thermocline's runs to a peer, within each round, stand at
the precision in which the peer is faster.
"""
import argparse
import dataclasses
import functools
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from typing import Callable

import train_run

# The name, the script, and whether it has a --precision.
PEERS = {"torch": ("PyTorch, plain", "torch_dlrm.py", True),
         "torch-expert": ("PyTorch, expert", "torch_expert_dlrm.py", True),
         "torch-rpc": ("PyTorch RPC", "torch_rpc_dlrm.py", False),
         "tf-ps": ("TensorFlow PS", "tf_ps_dlrm.py", True)}
PRECISIONS = {"fp32": [], "bf16": ["--set", "precision=BFLOAT16"]}
KERNEL_PRECISIONS = {"fp32": "float32", "bf16": "bfloat16"}  # as kernels_benchmark names them
FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers")
SCRIPTS = {"dlrm": ("script", os.path.join(train_run.ROOT, "deploy", "python", "examples", "dlrm.py")),
           "no-model": ("script, no model", os.path.join(FOLDER, "no_model.py"))}


def train(args, seed, precision="fp32", script=None):
    """One run of Thermocline, as a dict with samples_per_s, auc and logloss. script: what computes the model."""
    flags = list(PRECISIONS[precision])
    if script:
        command = json.dumps([args.python, script])
        flags = ["--clear", "dlrm", "--set", f"worker={{command: {command} threads: {args.cores}}}"]
    summary, _, _ = train_run.train(args, [
        "--set", f"train.batch_size={args.batch}", "--set", f"train.max_steps={args.steps}",
        "--set", f"default_table.init_scale={args.init}", "--set", f"seed={seed}", *flags])
    rates = summary["window_samples_per_s"]
    return {"samples_per_s": statistics.median(rates[1:] or rates), "auc": summary["auc"],
            "logloss": summary["logloss"], "versions": commit()}


def peer_command(args, script):
    return [args.python, os.path.join(FOLDER, script), args.data, "--batch", str(args.batch), "--threads",
            str(args.cores)]


def run_peer(args, seed, script, flags):
    command = [*peer_command(args, script), "--steps", str(args.steps), "--init", str(args.init), "--seed", str(seed),
               *flags]
    output = train_run.run(command)
    found = re.search(r"^(\S+) samples_per_s=([0-9.]+) auc=([0-9.]+) logloss=([0-9.]+)$", output, re.M)
    if not found:
        sys.exit(f"{' '.join(command)}\nprinted no result, but:\n{output}")
    return {"versions": found[1].replace("=", " "), "samples_per_s": float(found[2]),
            "auc": float(found[3]), "logloss": float(found[4])}


def processor():
    with open("/proc/cpuinfo") as file:
        info = file.read()
    found = [re.search(rf"^{name}\s*: (.*)", info, re.M) for name in ("model name", "cpu family", "model")]
    name = f"{found[0][1]}, family {found[1][1]}, model {found[2][1]}" if all(found) else platform.processor()
    isa = "AVX-512" if " avx512f " in info else "AVX2" if " avx2 " in info else "no AVX2"
    isa += " with bf16" if " avx512_bf16 " in info else ""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{name}, {isa}, {memory:.0f} GiB"


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


def limits(args):
    """Prints what this machine can do at most. Returns {precision: samples/s if all that the cores did was this model's
    products}, as far as that is known."""
    dnnl = dict(re.findall(r"(\w+)=(\S+)", train_run.run(peer_command(args, "onednn_products.py"))))
    found = {}
    for precision in args.precisions if os.path.exists(args.kernels_benchmark) else []:
        output = train_run.run([args.kernels_benchmark, "--batch", str(args.batch), "--threads", str(args.cores),
                                "--repeats", "20", "--precision", KERNEL_PRECISIONS[precision]])
        if not found:
            found = {kind: float(rate) for kind, rate in
                     re.findall(r"multiply-adds, (\w+): .*?, ([0-9.]+) of", output)}
            print(*(f"limits    {said}" for said in re.findall(r"^(?:ceiling|oneDNN): .*", output, re.M)), sep="\n")
        for what, rate, share in re.findall(r"^(step|its products) .* ([0-9.]+) GFLOP/s +([0-9]+%)", output, re.M):
            print(f"ours      {what}, {precision}: {rate} GFLOP/s, {share}")
    if not found:
        print(f"limits    not measured: there is no {args.kernels_benchmark} (bazel build //kernels:kernels_benchmark)")
    print(f"oneDNN    in PyTorch {dnnl['torch']}, the step's products: fp32 {dnnl['fp32']} GFLOP/s, bf16 {dnnl['bf16']}")
    print(f"model     {dnnl['mflop_per_sample']} MFLOP a sample in products", flush=True)
    most = {precision: found.get(kind) for precision, kind in KERNEL_PRECISIONS.items()}
    return {precision: 1e3 * rate / float(dnnl["mflop_per_sample"]) for precision, rate in most.items() if rate}


def print_table(contestants, most):
    """most: as of limits()."""
    rates = {each.name: [run["samples_per_s"] for run in each.runs] for each in contestants}
    ours = [each.name for each in contestants if each.is_ours]
    # Which of a program's precisions is the faster one.
    best = {each.program: max((other.name for other in contestants if other.program == each.program),
                              key=lambda name: statistics.median(rates[name])) for each in contestants}

    def ratio(first, each):
        if each.program == "Thermocline" or each.name != best[each.program]:
            return ""
        return spread([a / b for a, b in zip(rates[first], rates[each.name])], 2)

    def share(each):
        limit = most.get(each.precision) if each.has_model else None
        return f"{statistics.median(rates[each.name]) / limit:.2f}" if limit else ""
    print(f"\n| {'':22} | {'samples/s':24} | limit | " + "".join(f"{name + ' / it':22} | " for name in ours) +
          f"{'AUC':15} | {'logloss':15} | version |")
    print("|---" * (len(ours) + 6) + "|")
    for each in contestants:
        print(f"| {each.name:22} | {spread(rates[each.name]):24} | {share(each):5} | "
              + "".join(f"{ratio(name, each):22} | " for name in ours)
              + f"{mean([r['auc'] for r in each.runs])} | {mean([r['logloss'] for r in each.runs])} | "
              f"{each.runs[0]['versions']} |")


@dataclasses.dataclass
class Contestant:
    """A program in one precision."""
    program: str
    precision: str
    run: Callable  # of a seed
    is_ours: bool = False  # the others are compared with it
    has_model: bool = True
    runs: list = dataclasses.field(default_factory=list)

    @property
    def name(self):
        return self.program if self.precision == "fp32" else f"{self.program}, {self.precision}"


def contestants_of(args):
    found = [Contestant("Thermocline", precision, functools.partial(train, args, precision=precision), is_ours=True)
             for precision in args.precisions]
    for at, script in enumerate(args.scripts):
        name, path = SCRIPTS[script]
        found.append(Contestant(name, "fp32", functools.partial(train, args, script=path), is_ours=at == 0,
                                has_model=script != "no-model"))
    for peer in args.peers:
        name, script, has_precision = PEERS[peer]
        for precision in args.precisions if has_precision else ["fp32"]:
            flags = ["--precision", precision] if has_precision else []
            found.append(Contestant(name, precision, functools.partial(run_peer, args, script=script, flags=flags)))
    return found


def compare(args):
    most, contestants = limits(args), contestants_of(args)
    for seed in range(1, args.rounds + 1):
        for each in contestants:
            result = each.run(seed)
            each.runs.append(result)
            print(f"round {seed}   {each.name:22} {result['samples_per_s']:9,.0f} samples/s   "
                  f"AUC {result['auc']:.4f}   logloss {result['logloss']:.4f}", flush=True)
    print_table(contestants, most)


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
    parser.add_argument("--precisions", type=names_in, default=list(PRECISIONS),
                        help=f"some of {','.join(PRECISIONS)}; default: all")
    parser.add_argument("--kernels-benchmark", metavar="PROGRAM",
                        default=f"{train_run.ROOT}/bazel-bin/kernels/kernels_benchmark")
    parser.add_argument("--python", default=sys.executable,
                        help="the interpreter that has the peers, and computes the scripts")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=160, help="0: all training rows once")
    parser.add_argument("--init", type=float, default=0.01, help="rows start uniform in [-INIT, INIT)")
    args = train_run.parse(parser)
    for flag, names, known in (("--peers", args.peers, PEERS), ("--scripts", args.scripts, SCRIPTS),
                               ("--precisions", args.precisions, PRECISIONS)):
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
