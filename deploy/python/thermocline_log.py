"""Click logs as Thermocline's jobs describe them, in batches for the PyTorch model (thermocline_torch.py).

    from thermocline_log import read_log
    for batch in read_log('log.tsv', model.config):
        logits = model(batch.dense, batch.keys, batch.offsets, batch.weights)

Reads Criteo's text form, other text that the job describes, and folders of .npy files. docs/formats.md
("Exported checkpoints") defines what becomes of a column.
"""

import bisect
import gzip
import math
import os
import re
import struct
from typing import Iterator, List, NamedTuple, Optional

import numpy as np
import torch

# An empty categorical column has this key, 2^64 - 1; no digits of a log may spell it.
EMPTY_CATEGORY = 0xffffffffffffffff

_MASK = 0xffffffffffffffff


class Batch(NamedTuple):
    dense: torch.Tensor          # [samples, num_dense] float32
    keys: List[torch.Tensor]     # of each feature: [lookups] int64
    offsets: List[torch.Tensor]  # of each feature: [samples + 1] int64
    labels: np.ndarray           # [samples], or of several tasks [samples, tasks], float32: 0, 1, or NaN where it is missing
    weights: Optional[List[Optional[torch.Tensor]]] = None  # of each feature: [lookups] float32, or None


_DECIMAL = re.compile(rb'-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?')
_HEX = re.compile(rb'[0-9a-fA-F]{1,16}')


def _parse_line(line, num_dense, num_features):
    """(label, numbers before log1p, keys of each feature) of a line of Criteo's text form."""
    columns = line.split(b'\t')
    if len(columns) != 1 + num_dense + num_features:
        raise ValueError('%d columns, not %d (1 label + %d dense columns + %d features of the model)'
                         % (len(columns), 1 + num_dense + num_features, num_dense, num_features))
    if columns[0] not in (b'0', b'1'):
        raise ValueError('the label %r is not 0 or 1' % columns[0])
    numbers = []
    for text in columns[1:1 + num_dense]:
        if text and not _DECIMAL.fullmatch(text):
            raise ValueError('%r is not a number' % text)
        numbers.append(float(text) if text else 0.0)
        if math.isinf(numbers[-1]):
            raise ValueError('%r is not finite' % text)
    bags = []
    for text in columns[1 + num_dense:]:
        bag = [EMPTY_CATEGORY]
        if text:
            values = text.split(b',')
            if not all(map(_HEX.fullmatch, values)):
                raise ValueError('%r is not hexadecimal, of at most 16 digits' % text)
            bag = [int(value, 16) for value in values]
            if EMPTY_CATEGORY in bag:
                raise ValueError('%r is reserved for empty columns' % text)
        bags.append(bag)
    return float(columns[0]), numbers, bags


def _lines(path):
    """The lines of a text file, plain or gzip, without their ends; blank lines at the file's end are skipped."""
    with open(path, 'rb') as file:
        is_gzip = file.read(2) == b'\x1f\x8b'
    blanks = 0
    with (gzip.open if is_gzip else open)(path, 'rb') as file:
        for line in file:
            line = line[:-1] if line.endswith(b'\n') else line
            line = line[:-1] if line.endswith(b'\r') else line
            if not line:
                blanks += 1
                continue
            yield from [b''] * blanks
            blanks = 0
            yield line


def _first_held_out(rows, test_share):
    return int(rows * (1 - test_share)) if test_share else 0


def _parse_rows(path, lines, parse, max_bad_rows):
    """What `parse` makes of each (number, line), but for those that it calls malformed, and None."""
    bad, first_bad = 0, ''
    for number, line in lines:
        try:
            row = parse(line)
        except ValueError as error:
            bad += 1
            message = '%s:%d: %s' % (path, number, error)
            first_bad = first_bad or message
            if bad > max_bad_rows > 0:
                message += ('; max_bad_rows allows %d, and this is malformed row %d; the first was %s'
                            % (max_bad_rows, bad, first_bad))
            if bad > max_bad_rows:
                raise ValueError(message) from None
            continue
        if row is not None:
            yield row


def _batches(rows, batch_size, num_dense, num_features):
    """Batches of rows (label, float32 numbers, keys of each feature, their weights or None of each feature)."""
    def batch(of):
        labels, numbers, bags, weights = zip(*of)
        flat = lambda lists, f: [value for row in lists for value in row[f]]
        keys = [torch.from_numpy(np.array(flat(bags, f), np.uint64).view(np.int64))
                for f in range(num_features)]
        offsets = [torch.from_numpy(np.cumsum([0] + [len(bag[f]) for bag in bags], dtype=np.int64))
                   for f in range(num_features)]
        dense = np.array(numbers, np.float32).reshape(len(of), num_dense)
        of_lists = [None if weights[0][f] is None else torch.from_numpy(np.array(flat(weights, f), np.float32))
                    for f in range(num_features)]
        return Batch(torch.from_numpy(dense), keys, offsets, np.array(labels, np.float32), of_lists)
    rest = []
    for row in rows:
        rest.append(row)
        if len(rest) == batch_size:
            yield batch(rest)
            rest = []
    if rest:
        yield batch(rest)


def _read_tsv(path, config, batch_size, test_share, held_out, max_bad_rows):
    num_dense, features = config['data']['num_dense'], config['features']
    test_share = test_share or (config['data']['test_share'] if held_out else 0)
    first = _first_held_out(sum(1 for _ in _lines(path)), test_share) if test_share else 0
    no_weights = [None] * len(features)

    def parse(line):
        label, numbers, bags = _parse_line(line, num_dense, len(features))
        return label, np.log1p(np.maximum(numbers, 0)), bags, no_weights
    lines = ((number, line) for number, line in enumerate(_lines(path), 1) if number > first)
    return _batches(_parse_rows(path, lines, parse, max_bad_rows), batch_size, num_dense, len(features))


# Described text: what the stanzas of the job say, in `config['described']` (data.train csv, label, split, and
# `feature`, as JSON).

# data.missing_number, where the job names none.
_MISSING_NUMBERS = ['-', 'n/a', 'N/A', '#N/A', 'NA', '<NA>', 'null', 'NULL', 'Null', 'nan', 'NaN', 'NAN', '-nan',
                    'none', 'None', 'NONE', '\\N']
_INTEGER = re.compile(rb'-?\d+')


def _mix(x):
    """mix64 of one Python integer."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & _MASK
    return x ^ x >> 31


def hash_text(text):
    """The key of a text (bytes) of a feature whose id is STRING."""
    h = _mix(len(text))
    for number, in struct.iter_unpack('<Q', text + bytes(-len(text) % 8)):
        h = _mix(h ^ number)
    return 0 if h == EMPTY_CATEGORY else h


def _number(text):
    """The finite number that all of a text is; None: it is none."""
    if not _DECIMAL.fullmatch(text):
        return None
    value = float(text)
    is_too_small = value == 0 and any(digit in b'123456789' for digit in re.split(b'[eE]', text)[0])
    return None if math.isinf(value) or is_too_small else value


class _Missing:
    """The texts that stand for a missing number."""

    def __init__(self, texts):
        self._texts, self._numbers = set(), set()
        for text in (texts or _MISSING_NUMBERS):
            number = _number(text.encode())
            self._texts.add(text.encode()) if number is None else self._numbers.add(number)

    def __call__(self, text, number):
        return text in self._texts if number is None else number in self._numbers


class _NumberColumn:
    """A numeric feature: text becomes a float32."""

    def __init__(self, feature, missing):
        self._numeric, self._missing = feature.get('numeric', {}), missing
        self.column = (feature.get('column') or [feature.get('name', '')])[0]
        self._known = {}

    def read(self, text):
        value = self._known.get(text)
        if value is None:
            value = self._transformed(text)
            if len(self._known) < 1 << 16:
                self._known[text] = value
        return value

    def _transformed(self, text):
        number = _number(text)
        if not text or self._missing(text, number):
            number = self._numeric.get('missing')
        if number is None:
            raise ValueError('%r is not a number' % text)
        for transform in self._numeric.get('transform', []):
            if 'log1p' in transform:
                number = math.log1p(max(number, 0.0))
            elif 'clip' in transform:
                number = max(number, transform['clip'].get('min', number))
                number = min(number, transform['clip'].get('max', number))
            else:
                of = transform['standardize']
                number = (number - of.get('mean', 0)) / of.get('std', 0)
        if math.isinf(np.float32(number)):
            raise ValueError('%r is too large a number' % text)
        return np.float32(number)


class _KeyColumn:
    """A categorical feature, or a sequence: text becomes keys. Each value of one that is read by step has a key."""

    def __init__(self, feature, missing, is_by_step=False):
        of = feature.get('categorical', {})
        self.column = (feature.get('column') or [feature.get('name', '')])[0]
        self.weights = of.get('weights')  # The column of its values' weights.
        self._is_mean = feature.get('pooling') == 'MEAN'
        self._id = 'BOUNDARIES' if of.get('boundaries') else of.get('id', 'STRING')
        self._boundaries = of.get('boundaries', [])
        self._min = int(of['min']) if 'min' in of else None
        self._buckets = int(of.get('buckets', 0))
        cut = of.get('substring', {})
        self._start, self._length = cut.get('start', 0), cut.get('length', 0)
        self._separator = of.get('separator', '').encode()
        self._if_missing = of.get('missing', 'OWN_KEY')
        self._missing, self._is_by_step = missing, is_by_step
        sequence = feature.get('sequence', {})
        self._max_length, self._keeps_first = sequence.get('max_length', 0), sequence.get('keep') == 'FIRST'
        self._known = {}

    def read(self, text):
        keys = self._known.get(text)
        if keys is None:
            keys = self._read(text)
            if len(self._known) < 1 << 20:
                self._known[text] = keys
        return keys

    def read_weighted(self, text, weights):
        """(keys, their weights)"""
        if not text and not weights:
            keys = self._value(text)
            return keys, [1.0] * len(keys)
        split = lambda of: of.split(self._separator) if self._separator else [of]
        values, numbers = split(text), list(map(_number, split(weights)))
        if len(values) != len(numbers):
            raise ValueError('%d weights, but %d values' % (len(numbers), len(values)))
        keys, counts = [], []
        for value, number in zip(values, numbers):
            if number is None or math.isinf(np.float32(number)) or (self._is_mean and number < 0):
                raise ValueError('a weight in %r is not a finite number%s'
                                 % (weights, ', 0 or more' if self._is_mean else ''))
            if not value and text:
                raise ValueError('an empty value among several')
            added = self._value(value)
            keys += added
            counts += [number] * len(added)
        return self._shorten(keys), self._shorten(counts)

    def count(self, text):
        """How many values a text has."""
        return 0 if not text else text.count(self._separator) + 1 if self._separator else 1

    def _read(self, text):
        if not text and self._is_by_step and self._if_missing != 'MALFORMED':
            return []
        if not text and self._if_missing == 'OWN_KEY':
            return [EMPTY_CATEGORY]
        if not self._separator or not text:
            return self._value(text)
        keys = []
        for value in text.split(self._separator):
            if not value:
                raise ValueError('an empty value among several in %r' % text)
            keys += self._value(value)
        return self._shorten(keys)

    def _shorten(self, values):
        if not 0 < self._max_length < len(values):
            return values
        return values[:self._max_length] if self._keeps_first else values[-self._max_length:]

    def _value(self, text):
        key = self._key(text)
        if key is not None:
            return [key]
        if self._if_missing == 'MALFORMED':
            raise ValueError('%r is missing, which categorical.missing refuses' % text)
        if self._is_by_step and self._if_missing == 'NO_KEY':
            raise ValueError('%r is missing and has no key, as each step of a sequence must' % text)
        return [EMPTY_CATEGORY] if self._if_missing == 'OWN_KEY' else []

    def _key(self, whole):
        """None: it is missing."""
        text = whole[self._start:]
        text = text[:self._length] if self._length else text
        if not text:
            return None
        if self._id == 'STRING':
            key = hash_text(text)
            return key % self._buckets if self._buckets else key
        if self._id == 'BOUNDARIES':
            number = _number(text)
            if self._missing(text if number is not None else whole, number):
                return None
            if number is None:
                raise ValueError('%r is not a number' % text)
            return bisect.bisect_right(self._boundaries, number)
        if self._id == 'HEX':
            key = int(text, 16) if _HEX.fullmatch(text) else EMPTY_CATEGORY
            is_id = key != EMPTY_CATEGORY
        else:
            number = int(text) if _INTEGER.fullmatch(text) else 1 << 64
            is_id = -(1 << 63) <= number < 1 << 64
            if is_id and self._min is not None and number < self._min:
                return None
            key = number & _MASK
        if not is_id and self._missing(whole, None):
            return None
        if not is_id:
            raise ValueError('%r is no id (%s)' % (text, self._id))
        if key == EMPTY_CATEGORY:
            return None
        return _mix(key) % self._buckets if self._buckets else key


def _cross(keys, buckets):
    h = _mix(len(keys))
    for key in keys:
        h = _mix(h ^ key)
    return h % buckets if buckets else 0 if h == EMPTY_CATEGORY else h


def _ends_in_quotes(text, separator):
    """Whether the end of `text` is within a column in quotes."""
    at = 0
    while at >= 0:
        if text[at:at + 1] == b'"':
            at += 1
            while True:
                at = text.find(b'"', at)
                if at < 0:
                    return True
                if text[at + 1:at + 2] != b'"':
                    break
                at += 2
        at = text.find(separator, at) + 1 or -1
    return False


def _split_row(text, separator):
    """The columns of a row in which some may stand in quotes."""
    columns = []
    while True:
        if text[:1] == b'"':
            end = 1
            while True:
                end = text.find(b'"', end)
                if end >= 0 and text[end + 1:end + 2] == b'"':
                    end += 2
                    continue
                break
            if end < 0 or text[end + 1:end + 2] not in (b'', separator):
                raise ValueError('column %d begins with a quote that is not closed at its end' % (len(columns) + 1))
            columns.append(text[1:end].replace(b'""', b'"'))
            rest = text[end + 1:]
        else:
            column, found, after = text.partition(separator)
            columns.append(column)
            rest = found + after
        if not rest:
            return columns
        text = rest[1:]


class _DescribedLog:
    """Rows of a text file as the stanzas of a job describe them."""

    def __init__(self, path, config, held_out):
        described = config['described']
        data, self._path = described['data'], path
        if 'csv' not in data['train']:
            raise ValueError('the model was trained on files of another form than text, which this program cannot '
                             'read; write them as csv')
        csv = data['train']['csv']
        self._separator, self._quotes = csv.get('separator', ',').encode(), csv.get('quotes', True)
        self._names = csv.get('column', [])
        self._has_header = csv.get('header', False)
        if self._has_header:
            first = next(self._rows(), (1, b''))[1]
            self._header = self._columns(first)
            self._names = [name.decode('utf-8', 'surrogateescape') for name in self._header]
        missing = _Missing(data.get('missing_number'))
        stanzas = described['feature']
        self._numbers = [_NumberColumn(of, missing) for of in stanzas if 'numeric' in of]
        of_name = {of['name']: of for of in stanzas}
        self._features = []  # A cross is (places of its features, buckets).
        places = {feature['name']: f for f, feature in enumerate(config['features'])}
        self._sequences = [[places[name] for name in sequence['of']] for sequence in config.get('sequences', [])]
        for f, feature in enumerate(config['features']):
            cross = of_name[feature['name']].get('cross')
            is_by_step = any(f in lists for lists in self._sequences)
            self._features.append(_KeyColumn(of_name[feature['name']], missing, is_by_step) if cross is None else
                                  ([places[name] for name in cross['of']], int(cross.get('buckets', 0))))
        self._positive = {text.encode() for text in data['label'].get('positive', [])}
        self._may_be_missing, self._missing = data['label'].get('may_be_missing', False), missing
        learned = [task.get('label') or data['label']['column'][0] for task in config.get('tasks') or [{}]]
        self._num_tasks = len(learned)
        # (place in the row, the task that learns it; None: it is checked only)
        self._labels = [(self._names.index(label), learned.index(label) if label in learned else None)
                        for label in data['label']['column'] if label in self._names]
        self._has_labels = any(task is not None for _, task in self._labels)
        self._split = data['split'] if held_out and data.get('split', {}).get('column') else None
        self._column = {}
        used = [of.column for of in self._numbers]
        used += [name for of in self._features if isinstance(of, _KeyColumn)
                 for name in (of.column, of.weights) if name is not None]
        for name in used + ([self._split['column']] if self._split else []):
            if name not in self._names:
                raise ValueError('%s has no column %r' % (path, name))
            self._column[name] = self._names.index(name)

    def _rows(self):
        """(number of its first line, text without the line's end) of each row, the header's too."""
        blanks, begun, text = [], 0, b''
        with open(self._path, 'rb') as file:
            magic = file.read(4)
        if magic == b'\x28\xb5\x2f\xfd':
            raise ValueError('%s is .zst, which this program cannot read; decompress it (unzstd)' % self._path)
        with (gzip.open if magic[:2] == b'\x1f\x8b' else open)(self._path, 'rb') as file:
            for number, line in enumerate(file, 1):
                begun = begun if text else number
                text += line
                if self._quotes and b'"' in text and _ends_in_quotes(text, self._separator):
                    continue
                row = text[:-1] if text.endswith(b'\n') else text
                row, text = row[:-1] if row.endswith(b'\r') else row, b''
                if not row:
                    blanks.append((begun, row))
                    continue
                yield from blanks
                blanks = []
                yield begun, row
        if text:
            yield begun, text

    def _columns(self, text):
        if not self._quotes or b'"' not in text:
            return text.split(self._separator)
        return _split_row(text, self._separator)

    def _is_held_out(self, columns):
        text, begin = columns[self._column[self._split['column']]], self._split.get('test_from', '').encode()
        if _number(begin) is None:
            return text >= begin
        if _number(text) is None:
            raise ValueError('%r is not a number, as data.split.test_from is' % text)
        return _number(text) >= _number(begin)

    def _parse(self, text):
        columns = self._columns(text)
        if len(columns) != len(self._names):
            raise ValueError('%d columns, not %d' % (len(columns), len(self._names)))
        labels, is_any = [math.nan] * self._num_tasks, not self._has_labels
        for at, task in self._labels:
            label = self._read_label(columns[at], task is not None)
            is_any = is_any or not math.isnan(label)
            if task is not None:
                labels[task] = label
        if not is_any:
            raise ValueError('no label is there')
        numbers = [of.read(columns[self._column[of.column]]) for of in self._numbers]
        bags, weights = [], []
        for of in self._features:
            of_bag = None
            if not isinstance(of, _KeyColumn):
                bag = None
            elif of.weights is not None:
                bag, of_bag = of.read_weighted(columns[self._column[of.column]], columns[self._column[of.weights]])
            else:
                bag = of.read(columns[self._column[of.column]])
            bags.append(bag)
            weights.append(of_bag)
        for f, of in enumerate(self._features):
            if not isinstance(of, _KeyColumn):
                bags[f] = [_cross([bags[i][-1] for i in of[0]], of[1])]
        for lists in self._sequences:
            counts = [self._features[f].count(columns[self._column[self._features[f].column]]) for f in lists]
            if len(set(counts)) > 1:
                raise ValueError('the lists of a sequence differ in length: %s' % ', '.join(
                    '%r has %d' % (self._features[f].column, count) for f, count in zip(lists, counts)))
        if self._split and not self._is_held_out(columns):
            return None
        return labels[0] if len(labels) == 1 else labels, numbers, bags, weights

    def _read_label(self, text, is_learned):
        has_texts = is_learned and self._positive
        if has_texts and text in self._positive:
            return 1.0
        if not has_texts and text in (b'0', b'1'):
            return float(text)
        if self._may_be_missing and (not text or self._missing(text, _number(text))):
            return math.nan
        if has_texts:
            return 0.0
        raise ValueError('the label %r is not 0 or 1' % text)

    def rows(self, test_share, max_bad_rows):
        def lines():
            for i, (number, text) in enumerate(self._rows()):
                # Files that were joined have their header again.
                if not self._has_header or (i > 0 and self._columns_or_none(text) != self._header):
                    yield number, text
        first = 0
        if test_share:
            first = _first_held_out(sum(1 for _ in lines()), test_share)
        rows = (line for i, line in enumerate(lines()) if i >= first)
        return _parse_rows(self._path, rows, self._parse, max_bad_rows)

    def _columns_or_none(self, text):
        try:
            return self._columns(text)
        except ValueError:
            return None


def _read_described(path, config, batch_size, test_share, held_out, max_bad_rows):
    if not config.get('described'):
        raise ValueError('the export does not say how its job describes the data: it is of an older Thermocline; '
                         'export the checkpoint again')
    by_value = bool(config['described']['data'].get('split', {}).get('column'))
    if held_out and not by_value:
        test_share = test_share or config['data']['test_share']
    rows = _DescribedLog(path, config, held_out and not test_share).rows(test_share, max_bad_rows)
    return _batches(rows, batch_size, config['data']['num_dense'], len(config['features']))


def _read_npy(folder, config, batch_size, test_share, held_out, max_bad_rows):
    test_share = test_share or (config['data']['test_share'] if held_out else 0)
    own_rows = os.path.exists(os.path.join(folder, 'test_labels.npy'))
    split = 'test' if own_rows and not test_share else 'train'

    def load(kind, columns):
        if columns == 0:  # The file may be missing: the model has no such columns.
            return np.zeros((len(all_labels), 0), np.float32)
        array = np.load(os.path.join(folder, '%s_%s.npy' % (split, kind)), mmap_mode='r')
        return array.reshape(len(array), columns)
    columns = config['data'].get('labels', ['label'])
    all_labels = load('labels', len(columns))
    learned = [columns.index(task['label']) if len(columns) > 1 else 0 for task in config.get('tasks') or [{}]]
    may_be_missing = config['data'].get('labels_may_be_missing', False)
    all_dense = load('dense', config['data']['num_dense'])
    sparse = load('sparse', sum(feature['columns'] for feature in config['features'] if not feature.get('sequence')))
    lists = {feature['name']: [np.load(os.path.join(folder, '%s_%s_%s.npy' % (split, feature['name'], kind)),
                                       mmap_mode='r').reshape(-1) for kind in ('values', 'offsets')]
             for feature in config['features'] if feature.get('sequence')}
    rows, bad = len(all_labels), 0
    for begin in range(_first_held_out(rows, test_share), rows, batch_size):
        part = slice(begin, min(begin + batch_size, rows))
        dense = np.array(all_dense[part], np.float32)
        labels = np.array(all_labels[part], np.float32)
        is_missing = np.isnan(labels) & may_be_missing
        good = np.isfinite(dense).all(axis=1)
        good &= (np.isin(labels, (0, 1)) | is_missing).all(axis=1) & ~is_missing.all(axis=1)
        labels = labels[:, learned] if len(learned) > 1 else labels[:, learned[0]]
        for sequence in config.get('sequences', []):
            sizes = [np.diff(lists[name][1][part.start:part.stop + 1]) for name in sequence['of']]
            good &= np.all([of == sizes[0] for of in sizes], axis=0)
        bad += int((~good).sum())
        if bad > max_bad_rows:
            raise ValueError('%s: row %d is malformed' % (folder, begin + int(np.argmin(good))))
        keys, offsets, column = [], [], 0
        for feature in config['features']:
            if feature.get('sequence'):
                values, ends = lists[feature['name']]
                ends, most = ends[part.start:part.stop + 1].astype(np.int64), feature['max_length']
                bags = [values[a:b][:most] if feature['keep'] == 'FIRST' else values[max(a, b - most):b]
                        for a, b in zip(ends[:-1][good], ends[1:][good])]
                keys.append(torch.from_numpy(np.concatenate([np.zeros(0, np.int64)] + [
                    bag.astype(np.int64) for bag in bags])))
                offsets.append(torch.from_numpy(np.cumsum([0] + [len(bag) for bag in bags], dtype=np.int64)))
                continue
            ids = np.array(sparse[part, column:column + feature['columns']])[good]
            column += feature['columns']
            wide = ids.astype(np.int64)  # The same 64 bits of uint64; int32 keep their sign.
            if feature['padding_id'] is not None:
                used = wide != feature['padding_id']
            else:
                used = (ids >= 0) | (feature['columns'] == 1)
            keys.append(torch.from_numpy(wide[used]))
            offsets.append(torch.from_numpy(np.concatenate([[0], np.cumsum(used.sum(axis=1))])))
        yield Batch(torch.from_numpy(dense[good]), keys, offsets, labels[good])


def read_log(path, config, batch_size=4096, test_share=0.0, max_bad_rows=0, held_out=False) -> Iterator[Batch]:
    """The samples of a click log in the form that the model was trained on, in batches.

    path:       CRITEO_TSV, or text that the job describes: a file, plain or .gz. DLRM_NPY: a folder; its
                test_*.npy are read, where it has none train_*.npy
    config:     model.config
    test_share: > 0: only the last share of the (training) rows, those that a job with this
                data.test_share holds out
    held_out:   only the rows that the model's job holds out of its training files
    Raises ValueError at malformed row number max_bad_rows + 1, which names it.
    """
    readers = {'CRITEO_TSV': _read_tsv, 'DLRM_NPY': _read_npy, 'DESCRIBED': _read_described}
    return readers[config['data']['format']](path, config, batch_size, test_share, held_out, max_bad_rows)
