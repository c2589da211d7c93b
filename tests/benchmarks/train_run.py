"""One run of `thermocline train`, for the scripts that compare runs."""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def run(command):
    """The standard output of a command that must succeed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def read_json(path):
    with open(path) as file:
        return json.load(file)


def add_arguments(parser, rounds):
    """What to train, with what, and how often."""
    parser.add_argument("data", metavar="LOG", help="folder with {train,test}_{dense,sparse,labels}.npy")
    parser.add_argument("--thermocline", default=f"{ROOT}/build/bin/thermocline")
    parser.add_argument("--job", default=f"{ROOT}/deploy/jobs/kaggle_npy.textproto")
    parser.add_argument("--rounds", type=int, default=rounds)


def parse(parser):
    """The arguments, of which those above are checked, and as `flags` what stands after `--`."""
    ours, flags = sys.argv[1:], []
    if "--" in ours:
        at = ours.index("--")
        ours, flags = ours[:at], ours[at + 1:]
    args = parser.parse_args(ours)
    args.flags = flags
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    log = f"{args.data}/train_labels.npy" if os.path.isdir(args.data) else args.data
    for path in (args.thermocline, args.job, log):
        if not os.path.exists(path):
            parser.error(f"{path}: no such file")
    return args


def train(args, flags):
    """What a run leaves: its summary.json (and in it as window_samples_per_s those of metrics.jsonl,
    every 20 steps), the first worker's result, and the sparse tables of the servers."""
    with tempfile.TemporaryDirectory(prefix="train_run_") as folder:
        run_dir = os.path.join(folder, "run")

        def read(name):
            return read_json(os.path.join(run_dir, name))
        run([args.thermocline, "train", args.job, "--data", args.data, "--run-dir", run_dir,
             "--set", "checkpoint.none=true"] + flags + args.flags)
        tables = [table for server in read("server_stats.json")["servers"]
                  for table in server["stats"]["tables"] if table["role"] == "SPARSE"]
        summary = read("summary.json")
        with open(os.path.join(run_dir, "metrics.jsonl")) as file:
            events = [json.loads(line) for line in file]
        summary["window_samples_per_s"] = [event["samples_per_s"] for event in events if
                                           event["event"] == "progress" and event["step"] % 20 == 0]
        return summary, read("worker-0.json"), tables
