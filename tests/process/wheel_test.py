"""The wheel of the Python package: pip installs it, and a job trains with it, without PYTHONPATH. What a worker starts
with the wheel of a whole package is in tests/cluster/package_test.py.

Needs PyTorch (Debian's python3-torch: `deploy/setup.sh --tests`) and venv; without them all is skipped.
"""

import base64
import csv
import hashlib
import importlib.util
import os
import shutil
import subprocess
import unittest
import zipfile

import script_test
from harness import _RUNFILES, DEADLINE_S, ProcessTest, THERMOCLINE
from script_test import HAS_TORCH, LIBRARY, PACKAGE

WHEEL = os.path.join(_RUNFILES, 'deploy/wheel.py')
HAS_VENV = importlib.util.find_spec('ensurepip') is not None and importlib.util.find_spec('venv') is not None
if not HAS_VENV:
    print('SKIPPED: no venv (on Debian: apt install python3-venv)', flush=True)


@unittest.skipUnless(HAS_TORCH and HAS_VENV, 'no PyTorch, or no venv')
class WheelTest(ProcessTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.version = subprocess.run([THERMOCLINE, '--version'], check=True, capture_output=True,
                                     text=True).stdout.split()[-1]
        cls.package = os.path.join(cls.folder, 'package')
        shutil.copytree(os.path.join(PACKAGE, 'thermocline'), cls.package,
                        ignore=shutil.ignore_patterns('__pycache__'))
        shutil.copy(LIBRARY, cls.package)

    def make(self, name, version=None, code=0):
        """The wheel, in a folder of that name; or the error."""
        folder = '%s-%s' % (self.run_dir, name)
        os.mkdir(folder)
        made = subprocess.run(['/usr/bin/python3', WHEEL, self.package, version or self.version, folder],
                              capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(made.returncode, code, made.stderr)
        return made.stdout.strip() if code == 0 else made.stderr

    def test_is_a_wheel_of_the_same_bytes_each_time(self):
        os.makedirs(self.package + '/__pycache__', exist_ok=True)
        open(self.package + '/__pycache__/_run.cpython-311.pyc', 'w').close()
        path = self.make('first')
        self.assertEqual(os.path.basename(path), 'thermocline-%s-py3-none-linux_x86_64.whl' % self.version)
        for name in os.listdir(self.package):
            os.utime(os.path.join(self.package, name), (1, 1))
        with open(path, 'rb') as first, open(self.make('second'), 'rb') as second:
            self.assertEqual(first.read(), second.read())
        with zipfile.ZipFile(path) as wheel:
            names = wheel.namelist()
            self.assertIn('thermocline/_local.py', names)
            self.assertIn('thermocline/libthermocline.so', names)
            self.assertEqual([name for name in names if '__pycache__' in name], [])
            info = 'thermocline-%s.dist-info/' % self.version
            rows = list(csv.reader(wheel.read(info + 'RECORD').decode().splitlines()))
            self.assertEqual([row[0] for row in rows], names)
            for name, checksum, size in rows[:-1]:
                data = wheel.read(name)
                wanted = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')
                self.assertEqual((checksum, size), ('sha256=' + wanted, str(len(data))), name)

    def test_refuses_another_version(self):
        self.assertIn('is not of version 9.9.9', self.make('other', version='9.9.9', code=1))

    def test_a_job_trains_with_what_pip_has_installed(self):
        folder = self.run_dir + '-venv'
        python = folder + '/bin/python3'
        clean = {name: value for name, value in os.environ.items()
                 if name != 'PYTHONPATH' and not name.startswith('THERMOCLINE_')}

        def run(*command):
            done = subprocess.run(command, env=clean, cwd='/', capture_output=True, text=True, timeout=DEADLINE_S)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return done.stdout.strip()
        run('/usr/bin/python3', '-m', 'venv', '--system-site-packages', folder)
        run(python, '-m', 'pip', '--disable-pip-version-check', 'install', '--no-cache-dir', '--no-index',
            self.make('wheel'))
        version, library = run(python, '-c', 'import thermocline\n'
                               'from thermocline import _library\n'
                               '_library.load_library()\n'
                               'print(thermocline.__version__)\n'
                               'print(_library.library_path())').splitlines()
        self.assertEqual(version, self.version)
        self.assertTrue(os.path.realpath(library).startswith(os.path.realpath(folder) + os.sep), library)
        self.assertIn('thermocline', run(python, '-m', 'pip', '--disable-pip-version-check', 'list'))

        script = self.run_dir + '.py'
        with open(self.job, 'w') as job:
            job.write(script_test.JOB % {'data': self.data, 'script': script})
        programs = "import os; os.environ['PATH'] = %r + ':' + os.environ['PATH']\n" % os.path.dirname(THERMOCLINE)
        start = 'thermocline.local(%r, %r)' % (self.job, self.run_dir + '-local')
        with open(script, 'w') as file:
            file.write(programs + script_test.SCRIPT.replace('%(extra)s', '').replace('thermocline.worker()', start) +
                       "print(run.summary['steps'], run.summary['eval_samples'])\n")
        self.assertEqual(run(python, script), '40 2000')


if __name__ == '__main__':
    unittest.main()
