"""`thermocline checkpoint list | verify | export`, of a small checkpoint and of a trained model."""

import array
import json
import os
import shutil
import struct
import subprocess
import tempfile
import unittest

import harness

MAKE_TEST_CHECKPOINT = harness.program('deploy/checkpoints/make_test_checkpoint')


def read_safetensors(path):
    """({name: (shape, numbers)}, metadata) of a file; every byte of it has to be accounted for."""
    with open(path, 'rb') as file:
        content = file.read()
    (length,) = struct.unpack('<Q', content[:8])
    header = json.loads(content[8:8 + length])
    data = content[8 + length:]
    metadata = header.pop('__metadata__', {})
    tensors, used = {}, 0
    for name, entry in header.items():
        begin, end = entry['data_offsets']
        numbers = array.array({'U64': 'Q', 'F32': 'f'}[entry['dtype']], data[begin:end])
        size = 1
        for extent in entry['shape']:
            size *= extent
        assert len(numbers) == size, (name, entry)
        tensors[name] = entry['shape'], numbers
        used += end - begin
    assert used == len(data)
    return tensors, metadata


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


class CheckpointFilesTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ.get('TEST_TMPDIR'))
        self.addCleanup(shutil.rmtree, self.folder)
        self.run_dir = os.path.join(self.folder, 'run')
        self.checkpoints = os.path.join(self.run_dir, 'checkpoints')
        subprocess.run([MAKE_TEST_CHECKPOINT, self.checkpoints], check=True)
        self.newest = os.path.join(self.checkpoints, 'step-000000009')

    def command(self, *arguments):
        """(exit code, standard output, standard error)"""
        done = subprocess.run([harness.THERMOCLINE, 'checkpoint', *arguments], text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=harness.DEADLINE_S)
        return done.returncode, done.stdout, done.stderr

    def damage(self, *path):
        with open(os.path.join(self.checkpoints, *path), 'r+b') as file:
            file.seek(10)
            byte = file.read(1)
            file.seek(10)
            file.write(bytes([byte[0] ^ 1]))

    def test_list_shows_steps_sizes_and_damage(self):
        code, out, _ = self.command('list', self.checkpoints)
        self.assertEqual(code, 0, out)
        lines = out.splitlines()
        self.assertIn('step-000000004', lines[2])
        self.assertTrue(lines[2].endswith('full'), out)
        self.assertIn('step-000000009', lines[3])
        self.assertTrue(lines[3].endswith('incremental'), out)

        code, out, _ = self.command('list', '--json', self.newest + '/')
        self.assertEqual(code, 0, out)
        (listed,) = json.loads(out)['checkpoints']
        self.assertEqual((listed['name'], listed['generation'], listed['step'], listed['status'],
                          listed['samples'], listed['servers'], listed['kind'], listed['files']),
                         ('step-000000009', 1, 9, 'whole', 80, 2, 'incremental', 4))
        sizes = [os.path.getsize(os.path.join(self.checkpoints, step, 'generation-1-server-%d.rows' % server))
                 for step in ('step-000000004', 'step-000000009') for server in (0, 1)]
        self.assertEqual((listed['new_bytes'], listed['bytes']), (sum(sizes[2:]), sum(sizes)))

        os.remove(os.path.join(self.checkpoints, 'step-000000009', 'generation-1-server-1.rows'))
        self.damage('step-000000004', 'MANIFEST')
        code, out, _ = self.command('list', self.checkpoints)
        self.assertEqual(code, 1)
        self.assertIn('step-000000004/MANIFEST', out)
        self.assertIn('step-000000009/generation-1-server-1.rows\' is missing', out)

    def test_another_format_version_is_no_damage(self):
        path = os.path.join(self.newest, 'MANIFEST')
        with open(path, 'rb') as file:
            content = file.read()
        # docs/formats.md: the version at 8, the checksum of all else at 16.
        header = content[:8] + struct.pack('<I', 3) + content[12:16]
        with open(path, 'wb') as file:
            file.write(header + struct.pack('<I', crc32c(header + content[20:])) + content[20:])
        for action in ('list', 'verify'):
            code, out, _ = self.command(action, self.checkpoints)
            self.assertEqual(code, 1, out)
            self.assertIn("step-000000009 is unreadable: '%s' has format version 3" % path, out)
            self.assertNotIn('damaged', out)
        listed = json.loads(self.command('list', '--json', self.checkpoints)[1])['checkpoints']
        self.assertEqual([each['status'] for each in listed], ['whole', 'unreadable'])

    def test_verify_names_the_damaged_file(self):
        code, out, _ = self.command('verify', self.checkpoints)
        self.assertEqual(code, 0, out)
        self.assertEqual(out.count('is whole'), 2)
        self.assertRegex(out, r'model digest [0-9a-f]{32}\n')
        self.damage('step-000000009', 'generation-1-server-0.rows')
        code, out, _ = self.command('verify', self.checkpoints)
        self.assertEqual(code, 1)
        self.assertIn('step-000000004 is whole', out)
        self.assertIn('step-000000009 is damaged', out)
        self.assertIn('step-000000009/generation-1-server-0.rows', out)
        self.assertEqual(self.command('verify', self.newest)[0], 1)
        self.assertEqual(self.command('verify', os.path.join(self.checkpoints,
                                                             'step-000000004'))[0], 0)

    def test_verify_fails_where_a_resume_would(self):
        path = os.path.join(self.checkpoints, 'JOB_STATE')
        with open(path, 'wb') as file:
            file.write(b'TclnJobS')
        code, out, _ = self.command('verify', self.checkpoints)
        self.assertEqual(code, 1, out)
        self.assertEqual(out.count('is whole'), 2)
        self.assertIn("--resume would stop: '%s' is cut short" % path, out)
        # The newest checkpoint alone is whole.
        self.assertEqual(self.command('verify', self.newest)[0], 0)

    def test_a_run_directory_stands_for_its_checkpoints(self):
        with open(os.path.join(self.run_dir, 'job.textproto'), 'w') as job:
            job.write(harness.JOB % {'data': '/nowhere'})
        code, out, _ = self.command('list', self.run_dir)
        self.assertEqual(code, 0, out)
        self.assertIn('step-000000009', out)

    def test_export_gives_every_row_and_tensor(self):
        out_file = os.path.join(self.folder, 'model.safetensors')
        code, out, err = self.command('export', self.checkpoints, out_file, '--optimizer-state')
        self.assertEqual(code, 0, err)
        self.assertIn('step-000000009', out)
        tensors, metadata = read_safetensors(out_file)
        self.assertEqual(metadata['step'], '9')
        self.assertIn(metadata['model_digest'], out)
        self.assertIn(metadata['model_digest'], self.command('verify', self.newest)[1])
        # Every float shows its place: 1000 * table + key + 0.001 * index in the row.
        shape, keys = tensors['C1.keys']
        self.assertEqual(shape, [100])
        self.assertEqual(sorted(keys), [key * key for key in range(100)])
        self.assertEqual(tensors['C1.rows'][0], [100, 4])
        for at, key in enumerate(keys):
            for name, first in (('C1.rows', 0), ('C1.optimizer_state', 4)):
                for i, value in enumerate(tensors[name][1][4 * at:4 * at + 4]):
                    self.assertAlmostEqual(value, key + 0.001 * (first + i), delta=1e-3)
        shape, weights = tensors['bottom.0.weight']  # table 2, [in, out]
        self.assertEqual(shape, [3, 100])
        for i, value in enumerate(weights):
            self.assertAlmostEqual(value, 2000 + i // 256 + 0.001 * (i % 256), delta=1e-3)
        self.assertEqual(tensors['C2.keys'][0], [0])
        self.assertEqual(os.listdir(self.folder).count('model.safetensors.tmp'), 0)

    def test_bad_usage_is_exit_code_two(self):
        for arguments in ([], ['lits', self.checkpoints], ['list'], ['list', '/no/such/folder'],
                          ['list', '--optimizer-state', self.checkpoints], ['verify', 'a', 'b'],
                          ['export', self.checkpoints]):
            code, _, err = self.command(*arguments)
            self.assertEqual(code, 2, (arguments, err))
        self.assertIn("did you mean 'list'?", self.command('lits')[2])
        empty = os.path.join(self.folder, 'empty')
        os.mkdir(empty)
        self.assertEqual(self.command('list', empty)[0], 0)
        self.assertEqual(self.command('verify', empty)[0], 1)
        self.assertEqual(self.command('export', empty, 'x')[0], 1)


class TrainedCheckpointTest(harness.ProcessTest):
    def test_the_last_checkpoint_is_the_trained_model(self):
        with open(self.job, 'a') as job:
            job.write('checkpoint { every_steps: 10 full_every: 2 }')
        digest = self.train('--servers=2', '--workers=2')['model_digest']
        verify = subprocess.run([harness.THERMOCLINE, 'checkpoint', 'verify', self.run_dir], text=True,
                                stdout=subprocess.PIPE, timeout=harness.DEADLINE_S)
        self.assertEqual(verify.returncode, 0, verify.stdout)
        self.assertEqual(verify.stdout.splitlines()[-1].rsplit(' ', 1)[1], digest)
        out_file = self.run_dir + '.safetensors'
        subprocess.run([harness.THERMOCLINE, 'checkpoint', 'export', self.run_dir, out_file], check=True,
                       stdout=subprocess.DEVNULL, timeout=harness.DEADLINE_S)
        tensors, metadata = read_safetensors(out_file)
        self.assertEqual(metadata['model_digest'], digest)
        self.assertEqual(tensors['bottom.0.weight'][0], [13, 32])
        self.assertEqual(tensors['C26.rows'][0], [len(tensors['C26.keys'][1]), 8])


if __name__ == '__main__':
    unittest.main(verbosity=2)
