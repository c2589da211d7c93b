#!/usr/bin/env python3
"""Draws one step of a trace (`thermocline train --trace`) as a picture for a page: an SVG without dependencies.

    trace_picture.py RUN_DIR/trace.json STEP OUT.svg

Each process has a band, each of its threads a row; spans within spans lie below them. Threads that do nothing for the
step are left out, and so are calls, but for a row a process with those of the step. Spans that belong to the step are
coloured by what they are, and named where there is room; those of other steps and of none are grey.
"""
import collections
import json
import sys
import xml.sax.saxutils

WIDTH = 1100
LEFT = 150  # For the names of threads.
ROW = 15
GAP = 6
HEADER = 22
LEGEND = 24
AXIS = LEGEND + 26
MIN_PIXELS = 0.4  # Shorter spans can't be seen.
PIXELS_OF_LETTER = 5.8

# What a name contains, the first one first, and what the legend says.
COLOURS = (
    (('wait', 'hold'), '#cfcfcf', 'waits'),
    (('push', 'send'), '#e6a04c', 'pushes, sends'),
    (('pull', 'receive', 'fetch'), '#7fb2d9', 'pulls, receives'),
    (('forward',), '#5fae7e', 'forward'),
    (('backward',), '#4f9aa6', 'backward'),
    (('update', 'apply'), '#b97fae', 'updates rows'),
    (('log', 'checkpoint'), '#d08a82', 'log, checkpoint'),
    (('read', 'parse', 'plan'), '#b8b36a', 'reads, plans'),
)
OTHER, OTHER_TEXT = '#f0f0f0', 'another step'


def colour_of(event, step):
    if event['args'].get('step') != step:
        return OTHER
    return next((colour for parts, colour, _ in COLOURS if any(part in event['name'] for part in parts)), '#a8b8c8')


def legend():
    lines, x = [], LEFT
    for colour, text in [*((colour, text) for _, colour, text in COLOURS), (OTHER, OTHER_TEXT)]:
        lines.append('<rect x="%d" y="6" width="11" height="11" fill="%s" stroke="#bbb" stroke-width="0.5"/>'
                     % (x, colour))
        lines.append('<text x="%d" y="16">%s</text>' % (x + 15, text))
        x += 15 + int(len(text) * PIXELS_OF_LETTER) + 16
    return lines


class Rows:
    """The spans of each thread and the calls of each process, with the depth at which each lies."""

    def __init__(self, trace, step):
        events = trace['traceEvents']
        self.processes = {}
        self.threads = {}
        spans = collections.defaultdict(list)
        calls = {}
        for event in events:
            place = (event['pid'], event['tid'])
            if event['ph'] == 'M' and event['name'] == 'process_name':
                self.processes[event['pid']] = event['args']['name']
            elif event['ph'] == 'M' and event['name'] == 'thread_name':
                self.threads[place] = event['args']['name']
            elif event['ph'] == 'X':
                spans[place].append(event)
            elif event['ph'] == 'b':
                calls[event['pid'], event['id2']['local']] = dict(event, dur=0)
            elif event['ph'] == 'e':
                call = calls[event['pid'], event['id2']['local']]
                call['dur'] = event['ts'] - call['ts']
        # The step: from its first stage in a worker to its last there, or to the end of its update on a server.
        own = [event for place, found in spans.items() for event in found if event['args'].get('step') == step
               and (self.threads.get(place) == 'train' or event['name'] == 'apply')]
        if not own:
            sys.exit('the trace has no step %d' % step)
        self.begin = min(event['ts'] for event in own)
        self.end = max(event['ts'] + event['dur'] for event in own)
        self.rows = []  # (process, name, [(depth, event)])
        for pid in sorted(self.processes):
            for place in sorted(place for place in spans if place[0] == pid):
                self._add(pid, self.threads.get(place, ''), spans[place], step)
            self._add(pid, 'calls', [call for call in calls.values() if call['pid'] == pid], step)

    def _add(self, pid, name, events, step):
        seen = [event for event in events if event['ts'] < self.end and event['ts'] + event['dur'] > self.begin]
        if not any(event['args'].get('step') == step for event in seen):
            return
        placed, ends = [], []  # The end of the last span at each depth.
        for event in sorted(seen, key=lambda each: (each['ts'], -each['dur'])):
            depth = next((depth for depth, end in enumerate(ends) if end <= event['ts'] + 1e-6), len(ends))
            if name != 'calls':  # Spans of a thread nest: those that are open lie above.
                while ends and ends[-1] <= event['ts'] + 1e-6:
                    ends.pop()
                depth = len(ends)
            if depth == len(ends):
                ends.append(0)
            ends[depth] = event['ts'] + event['dur']
            placed.append((depth, event))
        self.rows.append((pid, name, placed))


def ticks(length_us):
    """About eight round times."""
    step = 1
    while length_us / step > 10:
        step *= 10
    for factor in (0.5, 0.2, 0.1):
        if length_us / (step * factor) <= 10:
            step *= factor
    return [number * step for number in range(int(length_us / step) + 1)]


def draw(rows, step):
    """The lines of an SVG."""
    scale = (WIDTH - LEFT - 10) / (rows.end - rows.begin)
    body, y, pid = [], AXIS, None
    for process, name, placed in rows.rows:
        if process != pid:
            pid = process
            y += GAP
            body.append('<text class="p" x="4" y="%d">%s</text>' % (y + 14, escape(rows.processes[pid])))
            body.append('<line x1="0" x2="%d" y1="%d" y2="%d" stroke="#999"/>' % (WIDTH, y, y))
            y += HEADER
        body.append('<text x="10" y="%d">%s</text>' % (y + 11, escape(name[:24])))
        for depth, event in placed:
            begin = max(0, event['ts'] - rows.begin) * scale
            width = min(event['ts'] + event['dur'] - rows.begin, rows.end - rows.begin) * scale - begin
            if width < MIN_PIXELS:
                continue
            body.append('<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="%s" stroke="#fff" stroke-width="0.4">'
                        '<title>%s: %.0f us</title></rect>'
                        % (LEFT + begin, y + depth * ROW, width, ROW - 1, colour_of(event, step),
                           escape(event['name']), event['dur']))
            if len(event['name']) * PIXELS_OF_LETTER < width:
                body.append('<text x="%.1f" y="%d">%s</text>'
                            % (LEFT + begin + 2, y + depth * ROW + 11, escape(event['name'])))
        y += ROW * (1 + max(depth for depth, _ in placed)) + 3
    height = y + GAP
    axis = []
    for tick in ticks(rows.end - rows.begin):
        x = LEFT + tick * scale
        axis.append('<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="#ddd"/>' % (x, x, AXIS - 6, height))
        axis.append('<text x="%.1f" y="%d">%g ms</text>' % (x, AXIS - 10, tick / 1000))
    return ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d">'
            % (WIDTH, height, WIDTH, height),
            '<title>Step %d over all processes</title>' % step,
            '<style>text { font: 11px sans-serif; fill: #222 } .p { font-weight: bold; font-size: 12px }</style>',
            '<rect width="100%" height="100%" fill="#fff"/>', *legend(), *axis, *body, '</svg>']


def escape(text):
    return xml.sax.saxutils.escape(text)


def main():
    if len(sys.argv) != 4 or not sys.argv[2].isdigit():
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        trace = json.load(file)
    step = int(sys.argv[2])
    with open(sys.argv[3], 'w') as out:
        out.write('\n'.join(draw(Rows(trace, step), step)) + '\n')


if __name__ == '__main__':
    main()
