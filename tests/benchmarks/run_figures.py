"""What one run of `thermocline train` did, read from its run directory: how fast it was, how good its model, and
what it moved. And figures over several runs."""
import csv
import dataclasses
import io
import json
import os
import statistics


class NoResult(Exception):
    """No run ended well in the folder."""


@dataclasses.dataclass
class ScoredPoint:
    """An evaluation, or the scoring at a change between hot and cold batches."""
    steps: int  # trained until then
    train_s: float = 0  # training time until then, without evaluations
    auc: float = None
    logloss: float = None
    is_evaluation: bool = True  # else the scoring of the schedule, which reads fewer rows
    rate: float = None  # the schedule's from then on, in percent
    schedule_s: float = 0  # what the scoring for the change took


@dataclasses.dataclass
class RunFigures:
    """Training includes the scoring that a schedule of hot and cold batches asks for, and no evaluation."""
    steps: int = 0
    samples: int = 0
    train_s: float = 0
    samples_per_s: float = 0
    auc: float = None  # of the model at the end
    logloss: float = None
    digest: str = ''
    device: str = ''
    wire_bytes_per_sample: float = 0  # between workers and servers and among workers, without evaluations
    device_bytes_per_sample: float = None  # to the device and from it
    hit_rate: float = None  # keys that the cache held, of all distinct ones
    hot_share: float = None  # samples in hot batches, of all
    hot_rows: float = None
    pack: str = ''  # the file of hot and cold batches, or of hot rows; '': there is none
    reuses_pack: bool = False
    calibrate_s: float = None  # before training; None: it did neither, or reused what another run made
    pack_s: float = None
    stage_us: dict = dataclasses.field(default_factory=dict)  # microseconds a sample, of worker 0
    # (steps, seconds of training from its beginning), as the worker reported them, without scoring.
    progress: list = dataclasses.field(default_factory=list)
    points: list = dataclasses.field(default_factory=list)  # ascending

    def train_seconds_at(self, steps):
        """Training time until so many steps, with the scoring of the schedule. What lies between two reports lies
        on a line between them."""
        schedule_s = sum(point.schedule_s for point in self.points if point.steps <= steps)
        before = (0, 0)
        for end, seconds in self.progress:
            if steps <= end and end > before[0]:
                part = (steps - before[0]) / (end - before[0])
                return schedule_s + before[1] + part * (seconds - before[1])
            before = (end, seconds)
        # The last steps may be less than a window of reports.
        return schedule_s + before[1] * (steps / before[0] if before[0] > 0 else 0)

    def take_evaluations(self, evaluated):
        """Makes the evaluations of another run of the same model points of this one, at its own times: so that a run
        need not be evaluated, and write back what it holds, to be timed."""
        points = [dataclasses.replace(point, train_s=self.train_seconds_at(point.steps), rate=None, schedule_s=0)
                  for point in evaluated.points if point.is_evaluation]
        # The schedule's points stay the run's own.
        points += [point for point in self.points if not point.is_evaluation or point.rate is not None]
        self.points = sorted(points, key=lambda point: point.steps)

    def seconds_to_auc(self, auc):
        """Training time until an evaluation first finds at least `auc`; None: none does."""
        return next((point.train_s for point in self.points
                     if point.is_evaluation and point.auc is not None and point.auc >= auc), None)


def _number(part, name):
    value = part.get(name)
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _read_json(path):
    try:
        with open(path) as file:
            found = json.load(file)
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise NoResult('%s is missing or no JSON' % path)
    return found


def _read_events(path, run):
    """Fills in when what was scored. Returns the bytes that evaluations pulled."""
    samples, evaluation_bytes = 0, 0
    if not os.path.exists(path):
        return 0
    with open(path) as file:
        lines = file.readlines()
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        event = line.get('event')
        if event == 'progress':
            now, rate, step = (_number(line, name) for name in ('samples', 'samples_per_s', 'step'))
            if None in (now, rate, step) or rate <= 0 or now < samples:
                continue
            begin = run.progress[-1][1] if run.progress else 0
            run.progress.append((step, begin + (now - samples) / rate))
            samples = now
        elif event in ('eval', 'change'):
            point = ScoredPoint(steps=line.get('step', -1) + 1, auc=_number(line, 'auc'),
                                logloss=_number(line, 'logloss'), is_evaluation=event == 'eval')
            if point.is_evaluation:
                evaluation_bytes += _number(line, 'bytes_pulled') or 0
                run.points.append(point)
                continue
            # Where a change comes at an evaluation, the line of that comes first.
            if not run.points or run.points[-1].steps != point.steps:
                run.points.append(point)
            run.points[-1].schedule_s = _number(line, 'seconds') or 0
            run.points[-1].rate = _number(line, 'rate')
    return evaluation_bytes


def _fill_pack(pack, run):
    run.hot_rows = _number(pack, 'hot_rows')
    samples = pack.get('samples') or {}
    hot, cold = _number(samples, 'hot'), _number(samples, 'cold')
    if hot is not None and cold is not None and hot + cold > 0:
        run.hot_share = hot / (hot + cold)
    run.pack = pack.get('file', '')
    run.reuses_pack = bool(pack.get('reused'))
    if not run.reuses_pack:
        run.calibrate_s, run.pack_s = _number(pack, 'calibrate_s'), _number(pack, 'pack_s')


def read_run(run_dir):
    """Raises NoResult, which names what is missing."""
    summary = _read_json(os.path.join(run_dir, 'summary.json'))
    worker = _read_json(os.path.join(run_dir, 'worker-0.json'))
    run = RunFigures(steps=_number(summary, 'steps') or 0, samples=_number(summary, 'samples') or 0)
    rate = _number(summary, 'samples_per_s')
    if run.samples < 1 or not rate or rate <= 0:
        raise NoResult('%s/summary.json tells of no training' % run_dir)
    evaluation_bytes = _read_events(os.path.join(run_dir, 'metrics.jsonl'), run)
    run.train_s = run.samples / rate + sum(point.schedule_s for point in run.points)
    for point in run.points:
        point.train_s = run.train_seconds_at(point.steps)
    run.samples_per_s = run.samples / run.train_s
    run.auc, run.logloss = _number(summary, 'auc'), _number(summary, 'logloss')
    run.digest = summary.get('model_digest') or ''
    moved = sum(_number(summary, name) or 0 for name in ('bytes_pulled', 'bytes_pushed'))
    moved += _number(summary.get('exchange') or {}, 'bytes_sent') or 0
    run.wire_bytes_per_sample = max(0.0, moved - evaluation_bytes) / run.samples
    run.hit_rate = _number(summary.get('cache') or {}, 'hit_rate')
    _fill_pack(summary.get('pack') or {}, run)
    run.device = worker.get('device', '')
    to_device, from_device = _number(worker, 'bytes_to_device'), _number(worker, 'bytes_from_device')
    if to_device is not None and from_device is not None:
        run.device_bytes_per_sample = (to_device + from_device) / max(worker.get('samples', run.samples), 1)
    # All workers take part in every step, so a stage's time is over the samples of all.
    run.stage_us = {stage['stage']: 1e6 * stage['total_s'] / run.samples for stage in worker.get('stages', [])}
    return run


@dataclasses.dataclass
class Spread:
    median: float
    low: float
    high: float


def spread_of(values):
    """None: there are no values."""
    values = [value for value in values if value is not None]
    return Spread(statistics.median(values), min(values), max(values)) if values else None


def median_of(values):
    spread = spread_of(values)
    return spread.median if spread else None


def stage_names(runs):
    """The names of all stages of all runs, in the order in which they are first met."""
    return list(dict.fromkeys(name for run in runs for name in run.stage_us))


def csv_text(rows):
    """Rows of texts and numbers; None is an empty cell."""
    text = io.StringIO()
    cells = [['' if cell is None else '%.10g' % cell if isinstance(cell, float) else cell for cell in row]
             for row in rows]
    csv.writer(text, lineterminator='\n').writerows(cells)
    return text.getvalue()


def table_text(rows):
    """Columns of texts: the first is aligned to the left, the others to the right. An empty row gives a rule."""
    widths = []
    for row in rows:
        widths += [0] * (len(row) - len(widths))
        for i, cell in enumerate(row):
            widths[i] = max(widths[i], len(cell))
    rule = '-' * (sum(widths) + 2 * (len(widths) - 1))
    lines = [rule if not row else
             '  '.join(cell.rjust(width) if i else cell.ljust(width)
                       for i, (cell, width) in enumerate(zip(row, widths))) for row in rows]
    return ''.join(line.rstrip() + '\n' for line in lines)
