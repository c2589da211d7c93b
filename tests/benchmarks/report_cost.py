#!/usr/bin/env python3
"""What the report of a long run costs: seconds, memory, bytes of the page, and the seconds in which a browser shows it.

    report_cost.py --thermocline build/bin/thermocline --lines 1000000

Writes the files of a run with so many progress lines, of the size that real ones have, with servers, evaluations,
checkpoints, rollbacks and restarts, and runs `thermocline report` on it. The seconds in a browser need Debian's chromium.
"""
import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STAGES = ["wait for data", "wait for rows", "forward", "backward to embeddings", "update rows", "push embeddings",
          "backward dense", "dense update", "push dense", "report", "read (ahead)", "plan (ahead)"]
LINE = ('{"auc":%.6f,"bytes_from_device_per_step":6700000.5,"bytes_pulled_per_step":%.1f,"bytes_pushed_per_step":%.1f,'
        '"bytes_to_device_per_step":9000000.5,"cache":{"bypass_rate":0.2,"hit_rate":%.5f,"rows_held":9558},'
        '"event":"progress","fraction":%.6f,"learning_rate":%.7f,"loss":%.7f,"samples":%d,"samples_per_s":%.2f,'
        '"stages_us_per_step":{' + ",".join('"%s":%%.1f' % stage for stage in STAGES) +
        '},"step":%d,"wait_share":0.2,"wall_s":%.3f}\n')


def write_run(run_dir, lines, servers):
    """The files of a run with so many progress lines, one every 20 steps. Returns the bytes of metrics.jsonl."""
    path = os.path.join(run_dir, "metrics.jsonl")
    with open(path, "w") as file:
        def write(event, **fields):
            file.write(json.dumps({"event": event, "wall_s": round(wall, 3), **fields}) + "\n")

        wall, generation, line = 0.0, 1, 0
        rollbacks = [lines * share // 10 for share in (3, 6)]
        write("started", time=1700000000, host="h0", version="0.1.0")
        while line < lines:
            line += 1
            wall += 2.5
            share, wave = line / lines, math.sin(line * .7)
            micros = [12000 + 3000 * math.sin(line * .1 + k) for k in range(len(STAGES))]
            file.write(LINE % (.79 + .006 * wave, 2e6, 2.4e6, .8, share, .02 * (1 - share),
                               .45 + .2 * math.exp(-30 * share) + .004 * wave, line * 81920, 32000 + 900 * wave,
                               *micros, 20 * line, wall))
            step = 20 * line - 1
            if line % max(1, lines // 100) == 0:
                write("eval", step=step, auc=.79, logloss=.45, samples=100000, seconds=3.0)
                write("checkpoint", step=step, name="step-%09d" % step, bytes=10**9, full=True, pause_s=.001, write_s=9.0)
                write("server_restart", process="server %d" % (line % servers), reason="was killed by signal 9 (Killed)")
            if rollbacks and line == rollbacks[0]:
                generation, line = generation + 1, rollbacks.pop(0) - lines // 50
                write("rollback", step=20 * line, generation=generation, process="worker 0", reason="worker 0 was killed")
        write("end", status="OK", has_summary=False)
    tables = [{"id": k, "name": "C%d" % k, "dim": 16, "role": "SPARSE", "rows": 10**6, "bytes": 10**8} for k in range(26)]
    rpcs = [{"method": method, "latency": {"count": 9, "p50_us": 190, "p99_us": 4000}} for method in ("Pull", "Push")]
    with open(os.path.join(run_dir, "server_stats.json"), "w") as file:
        json.dump({"servers": [{"address": "h%d:4000" % k, "stats": {"tables": tables, "rpcs": rpcs}}
                               for k in range(servers)]}, file)
    with open(os.path.join(run_dir, "job.textproto"), "w") as file:
        file.write('name: "long"\n')
    return os.path.getsize(path)


def report(thermocline, run_dir):
    """(seconds, of the processor, peak MiB) of the command, which must succeed."""
    begin = time.monotonic()
    pid = os.spawnv(os.P_NOWAIT, thermocline, [thermocline, "report", run_dir])
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        sys.exit("thermocline report ended with status %d" % status)
    return time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def seconds_in_browser(page):
    """Until the page is drawn; None: there is no Chromium."""
    sys.path.insert(0, os.path.join(ROOT, "tests", "process"))
    try:
        import browser
    except ImportError:
        return None
    if not browser.CHROMIUM:
        return None
    chromium = browser.Browser()
    try:
        begin = time.monotonic()
        chromium.open("file://" + os.path.abspath(page))
        return time.monotonic() - begin
    finally:
        chromium.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--thermocline", default=ROOT + "/build/bin/thermocline")
    parser.add_argument("--lines", type=int, default=1000000, help="progress lines; default 1,000,000")
    parser.add_argument("--servers", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if args.lines < 100 or args.servers < 1 or args.rounds < 1:
        parser.error("--lines takes at least 100; --servers and --rounds 1")
    if not os.access(args.thermocline, os.X_OK):
        parser.error("%s: no such program" % args.thermocline)
    with tempfile.TemporaryDirectory(prefix="report_cost_") as run_dir:
        size = write_run(run_dir, args.lines, args.servers)
        rounds = [report(args.thermocline, run_dir) for _ in range(args.rounds)]
        page = os.path.join(run_dir, "report.html")
        shown_s = seconds_in_browser(page)
        seconds = [round_[0] for round_ in rounds]
        print("progress lines  metrics.jsonl  seconds (min..max)  of the processor  peak memory  page     shown after")
        print("%14s  %9.1f MiB  %7.2f (%.2f..%.2f)  %16.2f  %7.1f MiB  %.2f MiB  %s" % (
            "{:,}".format(args.lines), size / 2**20, statistics.median(seconds), min(seconds), max(seconds),
            statistics.median(round_[1] for round_ in rounds), max(round_[2] for round_ in rounds), os.path.getsize(page) / 2**20,
            "no Chromium" if shown_s is None else "%.2f s" % shown_s))


if __name__ == "__main__":
    main()
