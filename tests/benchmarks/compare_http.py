#!/usr/bin/env python3
"""What the job's page and metrics cost: processor time of a job with --http that is scraped, and of one without.

    compare_http.py LOG [--rounds 3] [--period 1] [-- FLAGS OF `train`]

The two take turns. /metrics is scraped once a --period (seconds). Printed, of every round: the processor time of the
whole job, that of its controller, and of the process behind --http, as shares of the job's; then their medians, with
the least and the most. The models of all runs must be the same, bit for bit.

LOG is a folder as `thermocline generate` writes it.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

import train_run

TICKS_PER_S = os.sysconf('SC_CLK_TCK')


def seconds_of(pid):
    """The processor time of a process, without its children; None: it is gone."""
    try:
        with open('/proc/%d/stat' % pid) as stat:
            fields = stat.read().rsplit(')', 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def child_of(pid):
    """The process behind --http; None: there is none."""
    try:
        with open('/proc/%d/task/%d/children' % (pid, pid)) as children:
            numbers = children.read().split()
        for number in numbers:
            with open('/proc/%s/cmdline' % number) as command:
                if 'http-child' in command.read():
                    return int(number)
    except (FileNotFoundError, ProcessLookupError):
        pass
    return None


class Watcher:
    """Reads processor times while a job runs, and scrapes it if it has a page."""

    def __init__(self, pid, run_dir, period_s):
        self.pid, self.run_dir, self.period_s = pid, run_dir, period_s
        self.controller_s = self.child_s = 0
        self.scrapes = self.bytes = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def scrape(self):
        try:
            where = train_run.read_json(os.path.join(self.run_dir, 'http.json'))
            with open(where['token_file']) as file:
                token = file.read().strip()
            request = urllib.request.Request(where['url'] + 'metrics',
                                             headers={'Authorization': 'Bearer ' + token})
            with urllib.request.urlopen(request, timeout=10) as answer:
                self.bytes = len(answer.read())
            self.scrapes += 1
        except (OSError, json.JSONDecodeError, urllib.error.URLError):
            pass  # It has no page, or it has ended.

    def watch(self):
        next_scrape = 0
        while not self.ended.wait(0.02):
            self.controller_s = seconds_of(self.pid) or self.controller_s
            child = child_of(self.pid)
            if child is None:
                continue
            self.child_s = seconds_of(child) or self.child_s
            if time.monotonic() >= next_scrape:
                next_scrape = time.monotonic() + self.period_s
                self.scrape()

    def stop(self):
        self.ended.set()
        self.thread.join()


def run(args, flags):
    """The times of one job, in seconds, and its digest."""
    with tempfile.TemporaryDirectory(prefix='compare_http_') as folder:
        run_dir = os.path.join(folder, 'run')
        with open(os.path.join(folder, 'log'), 'w+') as log:
            job = subprocess.Popen([args.thermocline, 'train', args.job, '--data', args.data, '--run-dir', run_dir,
                                    '--set', 'checkpoint.none=true', *flags, *args.flags], stdout=log, stderr=log)
            watcher = Watcher(job.pid, run_dir, args.period)
            _, status, usage = os.wait4(job.pid, 0)  # With all processes that it has waited for.
            watcher.stop()
            if status != 0:
                log.seek(0)
                sys.exit('the job failed:\n' + log.read())
        total_s = usage.ru_utime + usage.ru_stime
        summary = train_run.read_json(os.path.join(run_dir, 'summary.json'))
        return total_s, watcher, summary


def spread(values):
    return '%.2f%% (%.2f%% to %.2f%%)' % (statistics.median(values), min(values), max(values))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    train_run.add_arguments(parser, rounds=3)
    parser.add_argument('--period', type=float, default=1)
    args = train_run.parse(parser)
    shares = {'controller without a page': [], 'controller': [], 'process behind --http': []}
    digests = set()
    for turn in range(args.rounds):
        for flags in ([], ['--http=127.0.0.1:0']):
            total_s, watcher, summary = run(args, flags)
            digests.add(summary['model_digest'])
            controller = 100 * watcher.controller_s / total_s
            child = 100 * watcher.child_s / total_s
            if flags:
                shares['controller'].append(controller)
                shares['process behind --http'].append(child)
            else:
                shares['controller without a page'].append(controller)
            print('round %d %-20s job %.2f s of processor time in %.1f s, controller %.2f%%, page %.2f%%, '
                  '%d scrapes of %d bytes' % (turn, ' '.join(flags) or 'without a page', total_s, summary['wall_s'],
                                              controller, child, watcher.scrapes, watcher.bytes), flush=True)
    if len(digests) > 1:
        sys.exit('the models differ: %s' % digests)
    for name, values in shares.items():
        print('%s: %s of the job\'s processor time' % (name, spread(values)))


if __name__ == '__main__':
    main()
