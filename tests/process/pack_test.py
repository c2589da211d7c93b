"""thermocline-pack by itself: its lines, its exit codes, and what it leaves behind."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

PACK = os.path.realpath(os.path.join(os.environ.get('TEST_SRCDIR', ''),
                                     os.environ.get('TEST_WORKSPACE', ''),
                                     'worker/thermocline-pack'))
JOB = """
name: "packed"
data {
  train { path: "%(folder)s/log.csv" csv { header: true } }
  split { last_share: 0 }
  label { column: "label" }
}
default_table { dim: 4 }
feature { name: "id" categorical { id: INTEGER } }
dlrm { top: [8] }
train { batch_size: 8 learning_rate { base: 0.01 } }
%(fae)s
calibration { sample_share: 1 directory: "%(folder)s/hot" }
"""
FAE = 'fae { budget: "64KiB" schedule { fixed: true } }'


class PackTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR'))
        self.addCleanup(shutil.rmtree, self.folder)
        self.job = os.path.join(self.folder, 'job.textproto')
        self.write_job(FAE)

    def write_job(self, fae):
        with open(self.job, 'w') as file:
            file.write(JOB % {'folder': self.folder, 'fae': fae})

    def write_log(self, rows):
        """Every fourth row has an id of its own, the others share ten."""
        with open(os.path.join(self.folder, 'log.csv'), 'w') as file:
            file.write('label,id\n')
            for i in range(rows):
                file.write('%d,%d\n' % (i % 2, 1000 + i if i % 4 == 3 else i % 10))

    def packs(self):
        folder = os.path.join(self.folder, 'hot')
        return os.listdir(folder) if os.path.isdir(folder) else []

    def run_pack(self, *arguments, code=0):
        """The last line."""
        done = subprocess.run([PACK, '--job=' + self.job, *arguments], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertLessEqual({line['event'] for line in lines[:-1]}, {'progress', 'warning'})
        self.assertEqual(lines[-1]['event'], 'done' if code == 0 else 'failed')
        return lines[-1]

    def test_makes_a_pack_and_finds_it(self):
        self.write_log(20000)
        done = self.run_pack()
        self.assertEqual(done['samples'], {'hot': 15000, 'cold': 5000})
        self.assertEqual(done['batches'], {'hot': 1875, 'cold': 625})
        self.assertEqual(done['hot_rows'], 10)
        self.assertIs(done['reused'], False)
        self.assertEqual(self.packs(), [os.path.basename(done['file'])])
        self.assertEqual(os.path.getsize(done['file']), done['file_bytes'])
        again = self.run_pack()
        self.assertIs(again['reused'], True)
        self.assertEqual(again['calibrate_s'] + again['pack_s'], 0)
        self.assertEqual(again['samples'], done['samples'])

    def test_calibrates_only(self):
        self.write_log(20000)
        done = self.run_pack('--calibrate_only', '--budgets=64KiB,1MiB', '--samples=0.1,1')
        found = {(c['budget_bytes'], c['sample_share']): c for c in done['calibrations']}
        self.assertEqual(len(found), 4)
        self.assertEqual(found[(64 << 10, 1)]['hot_sample_share'], 0.75)
        self.assertEqual(found[(1 << 20, 1)]['hot_sample_share'], 1)
        self.assertEqual(self.packs(), [])
        failed = self.run_pack('--calibrate_only', '--samples=2', code=2)
        self.assertIn("--samples: '2' is no share in (0, 1]", failed['message'])
        failed = self.run_pack('--calibrate_only', '--budgets=many', code=2)
        self.assertIn("--budgets: 'many' is no size", failed['message'])

    def test_errors_of_the_user(self):
        self.assertIn('log.csv', self.run_pack(code=2)['message'])  # There is none.
        self.write_log(100)
        self.write_job('')
        self.assertIn('has neither `fae` nor a cache', self.run_pack(code=2)['message'])
        self.write_job(FAE)
        with open(os.path.join(self.folder, 'hot'), 'w') as file:
            file.write('no folder')
        self.assertIn(self.folder + '/hot', self.run_pack(code=1)['message'])

    def test_a_signal_leaves_no_file(self):
        self.write_log(1000000)
        program = subprocess.Popen([PACK, '--job=' + self.job, '--threads=1'], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(program.kill)
        deadline = time.monotonic() + 60
        while not self.packs() and time.monotonic() < deadline:
            time.sleep(0.001)
        self.assertEqual([name.split('.', 1)[1] for name in self.packs()], ['pack.tmp'])
        program.send_signal(signal.SIGTERM)
        out, _ = program.communicate(timeout=60)
        self.assertNotEqual(program.returncode, 0)
        self.assertEqual(json.loads(out.splitlines()[-1]),
                         {'event': 'failed', 'message': 'packing was stopped'})
        self.assertEqual(self.packs(), [])

    def test_a_reader_that_is_gone_ends_it(self):
        self.write_log(1000000)
        program = subprocess.Popen([PACK, '--job=' + self.job, '--threads=1'],
                                   stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.addCleanup(program.kill)
        program.stdout.close()
        self.assertEqual(program.wait(timeout=60), 1)
        self.assertEqual(self.packs(), [])


if __name__ == '__main__':
    unittest.main()
