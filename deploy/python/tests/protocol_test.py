"""The numbers of worker/api's headers are those of the package and of the worker in Python."""
import hashlib
import os
import re
import unittest

import fake_worker

from thermocline import _library

HEADERS = os.path.join(os.environ.get('TEST_SRCDIR', ''), os.environ.get('TEST_WORKSPACE', ''), 'worker/api')

# What both sides must agree on, as it was when the number of the protocol was raised last. Who changes it raises
# TC_PROTOCOL, and this.
DIGESTS = {3: '891d0eac2855eab17717b23c2af36bae790709ac51702248240ca20b48e855b6'}


def without_comments(name):
    with open(os.path.join(HEADERS, name)) as header:
        return re.sub(r'/[*].*?[*]/', '', header.read(), flags=re.DOTALL)


class ProtocolTest(unittest.TestCase):
    def setUp(self):
        self.text = without_comments('thermocline.h') + without_comments('script_protocol.h')

    def numbers(self):
        return {name: int(value) for name, value in re.findall(r'\bTC_(\w+) = (\d+)', self.text)}

    def test_numbers_are_the_same_on_all_sides(self):
        numbers = self.numbers()
        self.assertGreater(len(numbers), 35)
        # In Python, events and arrays have shorter names.
        names = {**{'EVENT_' + name: name for name in ('BATCH', 'EVALUATION', 'SAVE', 'LOAD', 'PHASE')},
                 'SCORES_ARRAY': 'SCORES'}
        for name, number in numbers.items():
            ours = getattr(_library, names.get(name, name), None)
            messages = name in ('HELLO', 'BATCH', 'SAVE', 'LOAD', 'PHASE', 'END') or 32 <= number
            if ours is not None and not messages:
                self.assertEqual(ours, number, name)
            theirs = getattr(fake_worker, name, None)
            if theirs is not None:
                self.assertEqual(theirs, number, name)
        self.assertEqual(int(re.search(r'TC_PROTOCOL (\d+)u', self.text).group(1)), fake_worker.PROTOCOL)

    def test_a_change_of_the_protocol_raises_its_number(self):
        structures = re.findall(r'typedef (?:struct|enum) \w+ {.*?} \w+;|enum \w+ {.*?};', self.text, re.DOTALL)
        self.assertGreater(len(structures), 6)
        digest = hashlib.sha256(re.sub(r'\s+', ' ', ''.join(structures)).encode()).hexdigest()
        self.assertEqual(digest, DIGESTS[fake_worker.PROTOCOL])


if __name__ == '__main__':
    unittest.main()
