#!/usr/bin/env python3
"""Draws what arms.py and sweep.py have measured.

    bench_picture.py arms FOLDER     FOLDER/arms.csv, curves.csv -> arms.png
    bench_picture.py sweep FOLDER    FOLDER/sweep.csv -> sweep.png

Needs matplotlib.
"""
import collections
import csv
import os
import statistics
import sys

# A colour for each arm, whichever are there.
ARMS = {'remote-cpu': 'tab:gray', 'remote-gpu': 'black', 'fae': 'tab:red', 'fae-static': 'tab:orange',
        'cache-static': 'tab:blue', 'cache': 'tab:green'}


def read(folder, name):
    with open(os.path.join(folder, name), newline='') as file:
        return list(csv.DictReader(file))


def number(text):
    return float(text) if text else None


def medians(rows, key, value):
    """The median of `value` for each key(row), ascending."""
    values = collections.defaultdict(list)
    for row in rows:
        if row.get(value):
            values[key(row)].append(float(row[value]))
    return {name: statistics.median(found) for name, found in sorted(values.items())}


def budget(row):
    return int(row['budget_bytes'])


def draw_by_budget(axes, rows, value, label, scale=1.0):
    axes.set_ylabel(label)
    axes.set_xlabel('budget, MiB')
    drawn = False
    budgets = sorted({budget(row) for row in rows if budget(row) > 0})
    for arm, colour in ARMS.items():
        found = medians([row for row in rows if row['arm'] == arm], budget, value)
        if not found:
            continue
        drawn = True
        if list(found) == [0]:
            axes.axhline(found[0] * scale, color=colour, linestyle='--', label=arm)
        else:
            axes.plot([size / 2**20 for size in found], [part * scale for part in found.values()],
                      color=colour, marker='o', label=arm)
    if len(budgets) > 1:
        axes.set_xscale('log', base=2)
        axes.set_xticks([size / 2**20 for size in budgets], ['%g' % (size / 2**20) for size in budgets])
    axes.set_ylim(bottom=0)
    if drawn:
        axes.legend(fontsize='small')


def draw_aucs(axes, curves, largest):
    """AUC against training time: each arm with its largest budget, the seed that is first."""
    axes.set_xlabel('training time, s')
    axes.set_ylabel('AUC of the held-out rows')
    for arm, colour in ARMS.items():
        rows = [row for row in curves if row['arm'] == arm and row['is_evaluation'] == '1' and row['auc']
                and budget(row) == largest.get(arm)]
        seeds = sorted({int(row['seed']) for row in rows})
        for seed in seeds:
            points = [(float(row['train_s']), float(row['auc'])) for row in rows if int(row['seed']) == seed]
            axes.plot(*zip(*points), color=colour, linewidth=1, alpha=1 if seed == seeds[0] else 0.3,
                      label=arm if seed == seeds[0] else None)
    if axes.lines:
        axes.legend(fontsize='small')


def draw_rates(axes, curves):
    """The rate of FAE's schedule and the loss that moves it, of the first seed and largest budget."""
    rows = [row for row in curves if row['arm'] == 'fae' and row['rate']]
    axes.set_xlabel('steps')
    axes.set_ylabel("fae: rate, %")
    if not rows:
        return
    largest = max(budget(row) for row in rows)
    seed = min(int(row['seed']) for row in rows)
    rows = [row for row in rows if budget(row) == largest and int(row['seed']) == seed]
    steps = [int(row['steps']) for row in rows]
    axes.step(steps, [float(row['rate']) for row in rows], where='post', color='tab:red')
    axes.set_yscale('log')
    loss = axes.twinx()
    loss.set_ylabel('log loss at the change')
    loss.plot(steps, [number(row['logloss']) for row in rows], color='tab:gray', marker='.')


def draw_arms(plot, folder):
    rows = [row for row in read(folder, 'arms.csv') if row['seed']]
    curves = read(folder, 'curves.csv')
    largest = {}
    for row in rows:
        largest[row['arm']] = max(largest.get(row['arm'], 0), budget(row))
    figure, axes = plot.subplots(2, 3, figsize=(15, 8))
    draw_by_budget(axes[0][0], rows, 'samples_per_s', 'samples/s')
    draw_by_budget(axes[0][1], rows, 'wire_bytes_per_sample', 'bytes on the wire a sample')
    draw_by_budget(axes[0][2], rows, 'to_auc_s', 's of training to the AUC')
    draw_aucs(axes[1][0], curves, largest)
    for row in rows:  # What each arm holds: keys of a batch, or whole samples.
        row['held'] = row['hot_share'] or row['hit_rate']
    draw_by_budget(axes[1][1], rows, 'held', '% of samples hot (fae), of keys held (caches)', 100)
    draw_rates(axes[1][2], curves)
    figure.tight_layout()
    figure.savefig(os.path.join(folder, 'arms.png'), dpi=100)


def draw_sweep(plot, folder):
    rows = [row for row in read(folder, 'sweep.csv') if row['samples_per_s']]
    knobs = list(dict.fromkeys(row['knob'] for row in rows if row['knob'] != 'base'))
    columns = min(4, max(1, len(knobs)))
    height = (len(knobs) + columns - 1) // columns
    figure, grid = plot.subplots(max(height, 1), columns, figsize=(4 * columns, 3.2 * max(height, 1)),
                                 squeeze=False)
    for index, axes in enumerate(axes for line in grid for axes in line):
        if index >= len(knobs):
            axes.axis('off')
            continue
        points = [row for row in rows if row['knob'] == knobs[index]]
        places = list(range(len(points)))
        axes.plot(places, [float(row['samples_per_s']) for row in points], marker='o', color='tab:blue')
        is_long = any(len(row['value']) > 8 for row in points)
        axes.set_xticks(places, [row['value'] for row in points], fontsize='small', rotation=20 * is_long)
        axes.set_title(knobs[index])
        axes.set_ylabel('samples/s', color='tab:blue')
        axes.set_ylim(bottom=0)
        wire = axes.twinx()
        wire.plot(places, [float(row['wire_bytes_per_sample']) for row in points], marker='.',
                  color='tab:gray')
        wire.set_ylabel('wire bytes a sample', color='tab:gray')
        wire.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(os.path.join(folder, 'sweep.png'), dpi=100)


def main():
    kinds = {'arms': draw_arms, 'sweep': draw_sweep}
    if len(sys.argv) != 3 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    try:
        import matplotlib
    except ImportError:
        sys.exit('%s has no matplotlib (Debian: python3-matplotlib)' % sys.executable)
    matplotlib.use('Agg')
    from matplotlib import pyplot
    kinds[sys.argv[1]](pyplot, sys.argv[2])


if __name__ == '__main__':
    main()
