#!/usr/bin/env python3
"""Training speed of the presets beside the same models in plain PyTorch, on the same log.

    pip install -r tests/benchmarks/peers/requirements.txt      # torch and numpy suffice
    compare_models.py LOG [--models dlrm,wide_deep,deepfm,dcnv2,finalmlp] [--precisions fp32,bf16] [--rounds 5]
                      [--steps 160] [-- FLAGS OF `train`]
    compare_models.py LOG --models din,bst,tbsm,mmoe,ple ...

LOG is a folder as `thermocline generate` writes it; for the second form one with lists, as peers/history_log.py does.
A model is the stanza of deploy/jobs/criteo_MODEL.textproto (dlrm: that of --job) in the job --job, or that of
deploy/jobs/movielens_MODEL.textproto in a job with the log's features, with batches of --batch. Thermocline runs one
server and one worker process, PyTorch one process (peers/torch_models.py), with rows of their own for each table (an
nn.EmbeddingBag where the log has no lists) and with one nn.Embedding for all. All use
the first --cores cores, in turn; round n uses seed n. A run's samples/s is the median over windows of 20 steps, without
the first. Printed: each run; then for each model and precision of the products the median over the rounds with [lowest
highest], and the ratio of Thermocline to PyTorch in its fastest form, of both tables and precisions, within each round.
"""
import argparse
import os
import re
import statistics
import sys
import tempfile

import compare_peers
import train_run

PEERS = os.path.join(train_run.ROOT, "tests", "benchmarks", "peers")
sys.path.insert(0, PEERS)
import job_text  # noqa: E402  It needs no package.

MODELS = ["dlrm", "wide_deep", "deepfm", "dcnv2", "finalmlp"]
MODELS_OF_LISTS = ["din", "bst", "tbsm", "mmoe", "ple"]
PROGRAMS = ["Thermocline", "PyTorch, a table a feature", "PyTorch, one table"]
TABLES = ["each", "one"]  # PyTorch's, in this order


def read_job(path):
    with open(path) as file:
        return job_text.parse(file.read())


def job_with_lists(log, model):
    """The job movielens_MODEL.textproto, with the features and labels of a log with lists."""
    job = read_job(os.path.join(train_run.ROOT, "deploy", "jobs", f"movielens_{model}.textproto"))
    described = train_run.read_json(os.path.join(log, "features.json"))
    job["data"] = {"train": {"path": log, "npy": {}}, "num_dense": described["numbers"],
                   "label": {"column": described["labels"]}}
    plain = {table: name for name, table, is_list, _ in described["features"] if not is_list}
    lists = [(name, table, columns) for name, table, is_list, columns in described["features"] if is_list]
    pooling = {"pooling": job_text.Name("SUM" if "sequence" in job else "MEAN")}
    job["feature"] = [{"name": name, "table": table} for table, name in plain.items()] + [
        {"name": name, "table": table, **pooling, "sequence": {"max_length": columns}} for name, table, columns in lists]
    if "sequence" in job:
        then = {"then": [plain[table] for _, table, _ in lists]} if "then" in job["sequence"] else {}
        job["sequence"] = {"name": "history", "of": [name for name, *_ in lists], **then}
    return job


def job_of(args, model):
    if model in MODELS_OF_LISTS:
        job = job_with_lists(args.data, model)
        job["train"]["batch_size"] = args.batch
        return job
    job = read_job(args.job)
    if model != "dlrm":
        del job["dlrm"]
        job[model] = read_job(os.path.join(train_run.ROOT, "deploy", "jobs", f"criteo_{model}.textproto"))[model]
    job["train"]["batch_size"] = args.batch
    return job


def run_thermocline(args, path, seed, precision):
    own = argparse.Namespace(**{**vars(args), "job": path})
    summary, _, _ = train_run.train(own, ["--set", f"train.max_steps={args.steps}", "--set", f"seed={seed}",
                                          *compare_peers.PRECISIONS[precision]])
    rates = summary["window_samples_per_s"]
    return statistics.median(rates[1:] or rates)


def run_torch(args, path, seed, precision, tables):
    command = [args.python, os.path.join(PEERS, "torch_models.py"), args.data, "--job", path, "--tables", tables,
               "--steps", str(args.steps), "--threads", str(args.cores), "--seed", str(seed), "--no-eval",
               "--precision", precision]
    found = re.search(r"samples_per_s=([0-9.]+)", output := train_run.run(command))
    return float(found[1]) if found else sys.exit(f"{' '.join(command)}\nprinted no result, but:\n{output}")


def compare(args, model, folder):
    """{precision: [samples/s of each program] of each round}"""
    path = os.path.join(folder, f"{model}.textproto")
    with open(path, "w") as file:
        file.write(job_text.to_text(job_of(args, model)))
    rounds = {precision: [] for precision in args.precisions}
    for seed in range(1, args.rounds + 1):
        for precision, rates in rounds.items():
            rates.append([run_thermocline(args, path, seed, precision),
                          *(run_torch(args, path, seed, precision, tables) for tables in TABLES)])
            print(f"{model} {precision} round {seed}   " + "   ".join(
                f"{program} {rate:,.0f}" for program, rate in zip(PROGRAMS, rates[-1])), flush=True)
    return rounds


def print_table(results):
    print(f"\n| model | {' | '.join(PROGRAMS)} | Thermocline / the fastest |\n" + "|---" * (len(PROGRAMS) + 2) + "|")
    for model, rounds in results.items():
        fastest = [max(max(peers) for _, *peers in of_round) for of_round in zip(*rounds.values())]
        for precision, rates in rounds.items():
            columns = [compare_peers.spread(column) for column in zip(*rates)]
            ratio = compare_peers.spread([ours / peer for (ours, *_), peer in zip(rates, fastest)], 2)
            print(f"| {model}, {precision} | {' | '.join(columns)} | {ratio} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    train_run.add_arguments(parser, rounds=5)
    parser.add_argument("--models", default=",".join(MODELS), help=f"some of {','.join(MODELS + MODELS_OF_LISTS)}")
    parser.add_argument("--precisions", type=compare_peers.names_in, default=list(compare_peers.PRECISIONS))
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has PyTorch")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=160)
    args = train_run.parse(parser)
    models = args.models.split(",")
    if unknown := set(models) - set(MODELS + MODELS_OF_LISTS):
        parser.error(f"--models: {', '.join(sorted(unknown))} is none of {', '.join(MODELS + MODELS_OF_LISTS)}")
    if set(models) & set(MODELS_OF_LISTS) and not os.path.exists(f"{args.data}/features.json"):
        parser.error(f"{args.data} has no lists; peers/history_log.py makes a log with some")
    if unknown := set(args.precisions) - set(compare_peers.PRECISIONS):
        parser.error(f"--precisions: {', '.join(sorted(unknown))} is none of {', '.join(compare_peers.PRECISIONS)}")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:args.cores])
    print(f"machine   {compare_peers.processor()}; {args.cores} cores, load {os.getloadavg()[0]:.1f} before the runs\n"
          f"data      {args.data}, batch {args.batch}, {args.steps} steps; {compare_peers.commit()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="compare_models_") as folder:
        results = {model: compare(args, model, folder) for model in models}
    print_table(results)


if __name__ == "__main__":
    main()
