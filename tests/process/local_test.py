"""Jobs that a process starts for its own model: thermocline.local().

Needs PyTorch (Debian's python3-torch: `deploy/setup.sh --tests`); without it all is skipped.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import script_test
from harness import DEADLINE_S, THERMOCLINE, ProcessTest, children, wait_for
from script_test import HAS_TORCH, LIBRARY, PACKAGE

# A cell of a notebook, and the notebook's process: it runs the cells that it reads, and says how each ends.
CELL = script_test.SCRIPT.replace('thermocline.worker()', 'thermocline.local(%(arguments)s)')
KERNEL = """
import contextlib, io, json, os, signal, sys, traceback
kernel, environment = os.getpid(), dict(os.environ)
for line in sys.stdin:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    names, errors = {}, io.StringIO()
    with contextlib.redirect_stderr(errors):
        try:
            exec(compile(json.loads(line), 'cell', 'exec'), names)
            result = names['run'].summary
        except BaseException as error:
            traceback.print_exc()
            result = '%s: %s' % (type(error).__name__, error)
    if os.getpid() != kernel:
        os._exit(1)
    os.environ.clear()
    os.environ.update(environment)
    print(json.dumps([result, errors.getvalue()]), flush=True)
"""
# The folder of the job's own script has no part in it, either.
CHECKPOINTS = "set={'checkpoint.every_steps': 10, 'worker.directory': '/no/such/folder'}"
MARK = 'THERMOCLINE_LOCAL_TEST'


@unittest.skipUnless(HAS_TORCH, 'no PyTorch')
class LocalTest(ProcessTest):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.temporary = tempfile.mkdtemp(dir='/tmp')  # The path of a socket is short.
        cls.addClassCleanup(shutil.rmtree, cls.temporary)
        cls.kernel, cls.undisturbed_summary = None, None

    @classmethod
    def tearDownClass(cls):
        if cls.kernel is not None:
            cls.end(cls.kernel, cls.folder)
        super().tearDownClass()

    def setUp(self):
        super().setUp()
        self.script = '/no/such/script.py'  # The job's own script has no part in it.
        with open(self.job, 'w') as job:
            job.write(script_test.JOB % {'data': self.data, 'script': self.script})

    def cell(self, arguments=CHECKPOINTS, extra='', job=None):
        arguments = ', '.join(part for part in (repr(job or self.job), repr(self.run_dir), arguments) if part)
        return CELL.replace('%(arguments)s', arguments).replace('%(extra)s', extra)

    @classmethod
    def start_kernel(cls, mark):
        """Starts a process that runs cells. It and all that it starts have this mark in their environment."""
        return subprocess.Popen(
            ['/usr/bin/python3', '-c', KERNEL], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, 'PYTHONPATH': PACKAGE, 'THERMOCLINE_LIBRARY': LIBRARY, 'PYTHONDONTWRITEBYTECODE': '1',
                 'THERMOCLINE_PROGRAMS': os.path.dirname(THERMOCLINE), 'TMPDIR': cls.temporary, MARK: mark})

    @classmethod
    def end(cls, kernel, mark):
        if kernel.poll() is None:
            kernel.kill()
        kernel.communicate()
        wait_for(lambda: not cls.marked(mark), 'the end of the processes of the job')

    @staticmethod
    def write_cell(kernel, cell):
        kernel.stdin.write(json.dumps(cell) + '\n')
        kernel.stdin.flush()

    def start_cell(self, cell):
        """Starts a kernel of its own, which runs the cell."""
        kernel = self.start_kernel(self.run_dir)
        self.addCleanup(self.end, kernel, self.run_dir)
        self.write_cell(kernel, cell)
        return kernel

    def run_cells(self, *cells):
        """What the cells leave in the tests' one kernel: summaries, or the texts of errors; and standard error."""
        cls = type(self)
        if cls.kernel is None or cls.kernel.poll() is not None:
            cls.kernel = self.start_kernel(self.folder)
        results, errors = [], ''
        for cell in cells:
            self.write_cell(cls.kernel, cell)
            self.assertTrue(select.select([cls.kernel.stdout], [], [], DEADLINE_S)[0], 'the cell does not end')
            result, error = json.loads(cls.kernel.stdout.readline())
            results.append(result)
            errors += error
            self.assertEqual(os.listdir(self.temporary), [])
            # Not even for a moment: the block has waited for all.
            self.assertEqual([line for line in self.marked(self.folder) if 'for line in sys.stdin' not in line], [])
        return results, errors

    @staticmethod
    def marked(mark):
        """The command lines of the processes with this mark."""
        mark = ('%s=%s' % (MARK, mark)).encode()
        found = []
        for name in filter(str.isdigit, os.listdir('/proc')):
            try:
                with open('/proc/%s/environ' % name, 'rb') as environment:
                    if mark in environment.read().split(b'\0'):
                        with open('/proc/%s/cmdline' % name) as line:
                            found.append(line.read().replace('\0', ' '))
            except OSError:
                continue  # It has ended, or is another user's.
        return found

    def undisturbed(self):
        """The summary of the same job and model, by the launcher and a script."""
        if self.undisturbed_summary is not None:
            return self.undisturbed_summary
        script = self.run_dir + '.py'
        with open(script, 'w') as file:
            file.write(script_test.SCRIPT.replace('%(extra)s', ''))
        launcher = self.start("--set=worker.command=['/usr/bin/python3','%s']" % script,
                              run_dir=self.run_dir + '-undisturbed',
                              env={**os.environ, 'PYTHONPATH': PACKAGE, 'THERMOCLINE_LIBRARY': LIBRARY,
                                   'PYTHONDONTWRITEBYTECODE': '1'})
        code, out, err = self.finish(launcher)
        self.assertEqual(code, 0, out + err)
        type(self).undisturbed_summary = self.summary(launcher)
        return self.undisturbed_summary

    def assert_same(self, summary, undisturbed):
        self.assertIsInstance(summary, dict)
        for name in ('model_digest', 'auc', 'logloss', 'steps'):
            self.assertEqual(summary[name], undisturbed[name], name)

    def test_trains_as_a_script_of_the_launcher_does(self):
        # What interrupts the kernel's process group does not reach the job.
        signals = 'if batch.step == 15: import signal as s; s.signal(s.SIGINT, s.SIG_IGN); os.killpg(0, s.SIGINT)'
        (summary, ), err = self.run_cells(self.cell(arguments='', extra=signals))
        self.assert_same(summary, self.undisturbed())
        self.assertEqual(summary['servers'], 0)  # Its worker holds the rows; those of the launcher are on a server.
        self.assertEqual(self.undisturbed()['servers'], 1)
        bars = [line for line in err.splitlines() if line.startswith('[')]
        self.assertEqual(len(bars), 1, err)  # Standard error is no terminal: only the last is shown at once.
        self.assertRegex(bars[0], r'^\[=+\] 100%  40 steps  10,000 samples  [\d,]+/s  loss 0\.\d+$')

    def test_a_model_of_the_job_does_not_count(self):
        job = self.run_dir + '-dlrm.textproto'
        text = script_test.JOB % {'data': self.data, 'script': ''}
        with open(job, 'w') as file:
            file.writelines(line for line in text.splitlines(True) if not line.startswith('worker'))
            file.write('dlrm { bottom: [8] top: [8] }\n')
        (summary, ), _ = self.run_cells(self.cell(arguments='progress=False', job=job))
        self.assertEqual(summary['steps'], 40)

    def test_runs_that_start_within_a_second_have_a_folder_each(self):
        now = int(time.time())
        for second in range(now, now + DEADLINE_S):  # As if another run had begun in any second from now on.
            name = time.strftime('script-%Y%m%d-%H%M%S', time.localtime(second))
            os.makedirs(os.path.join(self.run_dir, 'runs', name, 'used'))
        cell = self.cell("progress=False").replace(repr(self.run_dir), 'None').replace('import os', '''
import os
before = os.getcwd()
os.chdir(%r)''' % self.run_dir, 1) + '''
os.chdir(before)
run.summary['run_dir'] = run.run_dir
'''
        (summary, ), _ = self.run_cells(cell)
        folder, name = os.path.split(summary['run_dir'])
        self.assertEqual(folder, os.path.join(self.run_dir, 'runs'))
        self.assertRegex(name, r'^script-\d{8}-\d{6}-2$')
        self.assertEqual(summary['steps'], 40)

    def test_goes_on_after_the_stop_button(self):
        interrupted = self.cell(extra='if batch.step == 35: import signal; os.killpg(0, signal.SIGINT)')
        (first, second), err = self.run_cells(interrupted, self.cell('resume=True, ' + CHECKPOINTS))
        self.assertEqual(first, 'KeyboardInterrupt: ', err)
        self.assertGreaterEqual(second['resumed_from_step'], 10)
        self.assert_same(second, self.undisturbed())

    def test_an_error_of_the_cell_is_its_own(self):
        failing = self.cell(extra='assert batch.step < 35, "no more of this"')
        (first, second), _ = self.run_cells(failing, self.cell('resume=True, ' + CHECKPOINTS))
        self.assertEqual(first, 'AssertionError: no more of this')
        self.assertGreaterEqual(second['resumed_from_step'], 10)

    def test_a_killed_worker_ends_the_job_which_can_go_on(self):
        kill = "if batch.step == 25: os.kill(int(next(p for p in os.listdir('/proc') if p.isdigit() and %r in " \
               "open('/proc/%%s/cmdline' %% p).read())), 9)" % (self.run_dir + '/worker-0.port')
        (first, second), _ = self.run_cells(self.cell(extra=kill), self.cell('resume=True, ' + CHECKPOINTS))
        self.assertRegex(first, '^Error: ')
        self.assertIn('killed by signal 9', first)
        self.assertIn('thermocline.local(..., resume=True)', first)
        self.assertNotIn('thermocline train --resume', first)
        self.assert_same(second, self.undisturbed())

    def test_a_job_that_ends_before_a_checkpoint_begins_anew(self):
        stall = '''
        while batch.step == 3 and not run._launcher.has_ended():
            import time
            time.sleep(0.01)'''
        (first, second), _ = self.run_cells(
            self.cell("set={'cluster.stall_timeout_s': 1}", extra=stall), self.cell('resume=True, ' + CHECKPOINTS))
        self.assertIn('nothing has advanced for 1s', first)
        self.assertIn('there is no checkpoint yet; to begin anew in this run directory: thermocline.local(', first)
        self.assertNotIn('thermocline train', first)
        self.assert_same(second, self.undisturbed())

    def test_a_server_may_be_silent_while_the_script_ends(self):
        stops = '''
    import subprocess, time
    server = int(subprocess.run(['/bin/sh', '-c', "sed -n 's/.*process //p' '%s'"], capture_output=True).stdout)
    os.kill(server, 19)
    later = subprocess.Popen(['/bin/sh', '-c', 'sleep 2; kill -CONT %%d' %% server])
    time.sleep(1.5)  # The worker asks after a server that has been silent for a second.
later.wait()
'''
        with_server = self.cell("set={'cluster.servers': 1}")
        (summary, ), _ = self.run_cells(with_server + stops % os.path.join(self.run_dir, 'server-0.log'))
        self.assert_same(summary, self.undisturbed())

    def test_leaves_nothing_when_the_kernel_is_killed(self):
        kernel = self.start_cell(self.cell("set={'train.passes': 1000000}"))
        wait_for(lambda: self.events('progress'), 'the first step')
        # The kernel, its guard, the launcher, a server, the worker, the relay and its group's guard.
        self.assertGreaterEqual(len(self.marked(self.run_dir)), 6)
        self.assertEqual(len(os.listdir(self.temporary)), 1)
        kernel.kill()
        kernel.wait()
        wait_for(lambda: not self.marked(self.run_dir), 'the end of all processes')
        self.assertEqual(os.listdir(self.temporary), [])

    def test_leaves_nothing_when_a_child_of_the_killed_kernel_lives_on(self):
        fork = 'if batch.step == 5 and os.fork() == 0: os.execv("/bin/sleep", ["sleep", "600"])'
        kernel = self.start_cell(self.cell("set={'train.passes': 1000000}", extra=fork))
        child = wait_for(lambda: [pid for pid, line in children(kernel.pid).items() if 'sleep' in line], 'a child')[0]
        self.addCleanup(os.kill, child, signal.SIGKILL)
        kernel.kill()
        kernel.wait()
        wait_for(lambda: len(self.marked(self.run_dir)) == 1, 'the end of all processes but the child')

    def test_forked_children_keep_no_job_alive(self):
        fork = """
        if batch.step == 15:
            child = os.fork()
            if child == 0:
                import signal
                signal.pause()
            with open(%r, 'a') as pids:
                print(child, file=pids)
            %s"""
        path = self.run_dir + '.children'
        end = 'import os\nfor line in open(%r): os.kill(int(line), 9); os.waitpid(int(line), 0)\n' % path
        (first, second), err = self.run_cells(self.cell(extra=fork % (path, 'raise RuntimeError("enough")')),
                                              self.cell('resume=True, ' + CHECKPOINTS, extra=fork % (path, '')) + end)
        self.assertEqual(first, 'RuntimeError: enough', err)
        self.assertEqual(second['steps'], 40)

    def test_forked_children_may_leave_the_block(self):
        leaves = """
        if batch.step in (5, 10):
            child = os.fork()
            if child == 0:
                if batch.step == 5: sys.exit(3)
                raise RuntimeError('a child leaves')
            os.waitpid(child, 0)"""
        (summary, ), err = self.run_cells('import sys\n' + self.cell(extra=leaves))
        self.assert_same(summary, self.undisturbed())

    def test_says_what_is_wrong_before_the_first_step(self):
        with open(self.run_dir + '-bad.textproto', 'w') as job:
            job.write('nmae: "bad"')
        os.mkdir(self.run_dir + '-empty')
        (bad, early, no_folder), _ = self.run_cells(self.cell(job=self.run_dir + '-bad.textproto'),
                                                    self.cell(extra='break').replace('run.evaluate(net)', ''),
                                                    "import thermocline\nwith thermocline.local('a', resume=True) "
                                                    "as run: pass")
        self.assertIn("'nmae'", bad)
        self.assertIn('before training was over', early)
        self.assertIn('run_dir', no_folder)
        variables = 'import os; os.environ.update(%s)\n' + self.cell()
        (missing, ), _ = self.run_cells(variables % {'THERMOCLINE_PROGRAMS': self.run_dir + '-empty'})
        self.assertIn("There is no program 'thermocline' in %s-empty" % self.run_dir, missing)
        (missing, ), _ = self.run_cells(variables % {'THERMOCLINE_PROGRAMS': '', 'PATH': self.run_dir + '-empty'})
        self.assertIn('/bin or on PATH (%s-empty)' % self.run_dir, missing)

    def test_the_launcher_alone_says_that_the_process_is_missing(self):
        failing = self.cell(extra='assert batch.step < 35, "no more of this"')
        self.run_cells(failing)
        resumed = self.thermocline('train', '--resume', '--run-dir', self.run_dir)
        self.assertEqual(resumed.returncode, 1, resumed.stdout)
        self.assertIn("the worker's log has what it wrote", resumed.stderr)
        with open(os.path.join(self.run_dir, 'worker-0.log')) as log:
            self.assertIn('thermocline.local(..., resume=True)', log.read())


if __name__ == '__main__':
    unittest.main()
