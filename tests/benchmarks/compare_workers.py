#!/usr/bin/env python3
"""Training by several workers over links: each process on a host of its own (a network namespace).

    compare_workers.py DATA [--dims 16,128] [--workers 1,2,4] [--rate 1gbit] [--rounds 3]
                       [--cache BUDGET] [--other PROGRAMS] [-- FLAGS OF `train`]

One host has the controller and the server, each worker has one. Links of all hosts are shaped to
--rate in both directions. For each dim and number of workers the kinds take turns, so that a machine
that slows down slows all down: without a cache; with --cache also with one; with --other (a folder
like build/) also without a cache by the programs there. Printed: every run; then for each kind the
median samples/s, the KB a step over the server's link and over a worker's (to it, from it; the
largest), the ratio to the first kind, taken within each round, and the ratio that links alone would
allow: of the bytes that the most loaded link carries in one direction. All runs of a dim and number of
workers must end with the same model, bit for bit.

DATA is a folder as `thermocline generate` writes it. Needs root, ip and tc. All hosts share the
processors of this machine: with more workers than cores the ratios alone say something.
"""
import argparse
import json
import os
import statistics
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, f"{ROOT}/tests/cluster")
import hosts as hosts_lib  # noqa: E402

QUEUE_BYTES = 4 << 20


def link_bytes(host):
    """What has come to a host over its link, and what has left it."""
    folder = "/sys/class/net/eth0/statistics/"
    # sysfs shows the network of the process that mounted it.
    text = host.run("sh", "-c", "mount -t sysfs sysfs /sys && cat %srx_bytes %stx_bytes; umount /sys"
                    % (folder, folder))
    return [int(line) for line in text.split()]


class Kind:
    """One way to run, and what came of its runs."""

    def __init__(self, name, programs, flags):
        self.name, self.flags = name, flags
        self.program = os.path.realpath(os.path.join(programs, "bin/thermocline"))
        self.rates, self.server, self.worker = [], (0, 0), (0, 0)
        self.digest = None

    def most_loaded(self):
        return max(*self.server, *self.worker)

    def run(self, args, hosts, workers, folder):
        run_dir = tempfile.mkdtemp(prefix="run-", dir=folder)
        controller = hosts[0]
        before = [link_bytes(host) for host in hosts]
        log = run_dir + ".log"
        launcher = controller.start(
            self.program, "train", args.job, "--data", args.data, "--run-dir", run_dir, "--servers=1",
            f"--workers={workers}", f"--nodes={1 + workers}", "--listen", controller.address + ":0",
            "--set", "cluster.insecure=true", "--set", "checkpoint.none=true", *self.flags, *args.flags, log=log)
        file = os.path.join(run_dir, "controller.json")
        hosts_lib.wait_for(lambda: os.path.exists(file) or launcher.poll() is not None, "the controller")
        with open(file) as text:
            address = json.load(text)["address"]
        agents = []
        for host in hosts[:1 + workers]:
            role = "server" if host is controller else "worker"
            agents.append(host.start(
                self.program, "node", "--controller", address, "--name", host.name, "--insecure",
                "--dir", f"/run/agent-{os.path.basename(run_dir)}", "--role", role, log=log))
        if launcher.wait() != 0:
            with open(log) as text:
                sys.exit(f"{self.name}: ended with {launcher.returncode}\n{text.read()}")
        for agent in agents:
            agent.wait()
        after = [link_bytes(host) for host in hosts]
        with open(os.path.join(run_dir, "summary.json")) as text:
            summary = json.load(text)
        moved = [tuple((end - begin) / 1000 / summary["steps"] for begin, end in zip(*both))
                 for both in zip(before, after)]
        self.rates.append(summary["samples_per_s"])
        self.server, self.worker = moved[0], max(moved[1:1 + workers])
        self.digest = summary["model_digest"]


def compare(args, hosts, dim, workers, folder):
    shape = ["--set", f"default_table.dim={dim}"]
    kinds = [Kind("no cache", args.programs, shape)]
    if args.cache:
        kinds.append(Kind("cache " + args.cache, args.programs,
                          shape + ["--set", f"cache.budget={args.cache}"]))
    if args.other:
        kinds.append(Kind("no cache, other programs", args.other, shape))
    print(f"\ndim {dim}, {workers} workers", flush=True)
    for number in range(1, args.rounds + 1):
        for kind in kinds:
            kind.run(args, hosts, workers, folder)
            if kind.digest != kinds[0].digest:
                sys.exit(f"{kind.name}: the digest is {kind.digest}, not {kinds[0].digest}")
            print(f"round {number}   {kind.name:26} {kind.rates[-1]:9.0f} samples/s   "
                  f"load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"{'':26} {'samples/s':>10} {'server KB/step in, out':>24} {'worker KB/step in, out':>24}  "
          "ratio to the first, links alone")
    for kind in kinds:
        ratios = [rate / first for rate, first in zip(kind.rates, kinds[0].rates)]
        print(f"{kind.name:26} {statistics.median(kind.rates):10.0f} "
              f"{kind.server[0]:13.0f}, {kind.server[1]:9.0f} {kind.worker[0]:13.0f}, "
              f"{kind.worker[1]:9.0f}  {statistics.median(ratios):.2f} "
              f"({min(ratios):.2f} .. {max(ratios):.2f}), {kinds[0].most_loaded() / kind.most_loaded():.2f}",
              flush=True)


def numbers(text):
    return [int(part) for part in text.split(",")]


def main():
    ours, flags = sys.argv[1:], []
    if "--" in ours:
        at = ours.index("--")
        ours, flags = ours[:at], ours[at + 1:]
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", metavar="LOG", help="folder with {train,test}_{dense,sparse,labels}.npy")
    parser.add_argument("--programs", default=f"{ROOT}/build")
    parser.add_argument("--other", help="other programs, to compare with")
    parser.add_argument("--job", default=f"{ROOT}/deploy/jobs/kaggle_npy.textproto")
    parser.add_argument("--dims", type=numbers, default=[16, 128])
    parser.add_argument("--workers", type=numbers, default=[1, 2, 4])
    parser.add_argument("--rate", default="1gbit", help="of each link, as tc writes it; 0: not shaped")
    parser.add_argument("--cache", default="", help="budget of each worker's cache; none: no such kind")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args(ours)
    args.flags = flags
    args.data = os.path.realpath(args.data)
    if missing := hosts_lib.missing():
        sys.exit(missing)
    hosts_lib.enter()
    with tempfile.TemporaryDirectory(prefix="compare_workers_") as folder:
        hosts = hosts_lib.make_hosts(1 + max(args.workers), folder)
        if args.rate != "0":
            for host in hosts:
                host.shape(args.rate, QUEUE_BYTES)
        print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} before the runs; links of {args.rate}")
        for dim in args.dims:
            for workers in args.workers:
                compare(args, hosts, dim, workers, folder)


if __name__ == "__main__":
    main()
