"""How a run begins and ends, what it evaluates, and what it says to wrong calls."""
import contextlib
import gc
import io
import json
import os
import pydoc
import random
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

from fake_worker import FakeFeature, FakeServer, LIBRARY, PACKAGE, ScriptTest, random_batches, \
    random_tables, np, torch
from torch import nn

import thermocline
from thermocline import _library

FEATURES = [FakeFeature('a', 'ta'), FakeFeature('b', 'tb')]


class Net(nn.Module):
    def __init__(self, run):
        super().__init__()
        torch.manual_seed(3)
        self.embeddings = run.embeddings()
        self.drop = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(8)
        self.top = nn.Linear(8, 1)

    def forward(self, batch):
        return self.top(self.drop(self.norm(self.embeddings(batch).flatten(1))))


class RunTest(ScriptTest):
    def start(self, plan, **options):
        return self.connect(FEATURES, FakeServer(random_tables(ta=4, tb=4)), plan, **options)

    @staticmethod
    def step(run, net, batch):
        loss = net(batch).mean()
        loss.backward()
        run.step(loss)

    # Begin and end
    # ------------------------------------------------------------------------------------------------------------------

    def test_a_run_knows_its_job(self):
        run, fake = self.start(random_batches(1), facts={'start_step': 40, 'batch_size': 6, 'passes': 3})
        with run:
            job = run.job
            self.assertEqual((job.name, job.seed, job.rank, job.batch_size, job.start_step), ('fake', 7, 0, 6, 40))
            self.assertEqual((job.passes, job.max_steps), (3, None))
            self.assertNotIn('THERMOCLINE_WORKER', os.environ)  # No child of the script takes itself for one.
            self.assertEqual((job.numeric, job.dims, job.evaluates), (['x0', 'x1', 'x2'], [4], False))
            self.assertEqual([(each.name, each.dim, each.pooling, each.is_list) for each in job.features],
                             [('a', 4, 'sum', False), ('b', 4, 'sum', False)])
            for batch in run.batches():
                self.assertEqual((batch.step, batch.size, len(batch), batch.closes, batch.share), (40, 6, 6, True, 1.0))
                self.assertEqual(repr(batch), '<thermocline.Batch of step 40: 6 samples>')
                run.skip()
            with self.assertRaisesRegex(thermocline.Error, 'one loop over run.batches.. is the whole of it, .*passes'):
                run.batches()
        self.assertEqual(self.finish(fake).end, 'done')
        with self.assertRaisesRegex(thermocline.Error, 'The run is over'):
            run.evaluate(None)

    def test_weights_and_labels_are_the_job_s(self):
        plan = random_batches(2)
        plan[1].weights = np.arange(6, dtype=np.float32)
        run, fake = self.start(plan)
        with run:
            for batch, given in zip(run.batches(), plan):
                self.assertTrue(np.array_equal(batch.numeric.numpy(), given.numeric))
                self.assertTrue(np.array_equal(batch.label.numpy(), given.labels))
                self.assertEqual(batch.weight is None, given.weights is None)
                if batch.weight is not None:
                    self.assertTrue(np.array_equal(batch.weight.numpy(), given.weights))
                run.skip()
        self.finish(fake)

    def test_a_trace_has_the_spans_of_its_steps(self):
        with tempfile.TemporaryDirectory() as folder:
            directory = os.path.join(folder, 'trace')
            run, fake = self.start(random_batches(4), facts={'start_step': 5, 'trace': {
                'job': 'fake', 'rank': 0, 'directory': directory, 'generation': 2, 'first_step': 6, 'last_step': 7}})
            with run:
                net = Net(run)
                for batch in run.batches():
                    with run.trace('my own "part"'):
                        self.step(run, net, batch)
                    # The file is there once the last step is over, not only at the end.
                    self.assertEqual(os.path.isdir(directory), batch.step == 8)
            self.finish(fake)
            self.assertEqual(os.listdir(directory), ['script-0.json'])
            with open(os.path.join(directory, 'script-0.json')) as file:
                self.assertEqual(file.readline(), '{"displayTimeUnit":"ms",\n')  # The launcher reads it by lines.
                about = json.loads('{%s}' % file.readline().rstrip(',\n'))['otherData']
                file.seek(0)
                trace = json.load(file)
        self.assertEqual(about, trace['otherData'])
        self.assertEqual((about['process'], about['generation'], about['pid'], about['dropped']),
                         ('script 0', 2, os.getpid(), 0))
        spans = [event for event in trace['traceEvents'] if event['ph'] == 'X']
        self.assertEqual(about['events'], len(spans))
        steps = {}
        for span in spans:
            self.assertGreaterEqual(min(span['ts'], span['dur']), 0)
            steps.setdefault(span['name'], set()).add(span['args']['step'])
        for name in ('make batch', 'write gradients', 'script step', 'wait for worker'):
            self.assertEqual(steps[name], {6, 7}, name)
        self.assertEqual(steps['my own "part"'], {6, 7})

    def test_an_error_comes_with_its_traceback(self):
        run, fake = self.start(random_batches(1))
        with self.assertRaises(ZeroDivisionError):
            with run:
                for batch in run.batches():
                    batch.size / 0
        end = self.finish(fake).end
        self.assertIn('Traceback (most recent call last)', end)
        self.assertIn('batch.size / 0', end)
        self.assertIn('ZeroDivisionError', end)

    def test_a_traceback_has_the_public_name_of_an_error(self):
        run, fake = self.start(random_batches(1))
        with self.assertRaises(thermocline.Error):
            with run:
                run.track(net=3)
        self.assertIn("\nthermocline.Error: 'net' cannot be tracked", self.finish(fake).end)

    def test_exits_have_their_meaning(self):
        run, fake = self.start([])
        with self.assertRaises(SystemExit):
            with run:
                list(run.batches())
                sys.exit(0)
        self.assertEqual(self.finish(fake).end, 'done')
        run, fake = self.start([])
        with self.assertRaises(SystemExit):
            with run:
                sys.exit('no data')
        self.assertIn('SystemExit: no data', self.finish(fake).end)

    def test_leaving_early_is_a_failure(self):
        run, fake = self.start(random_batches(2))
        with run:
            for _ in run.batches():
                break
        self.assertRegex(self.finish(fake).end, 'has left `with .*` before training was over')

    def test_a_run_is_used_in_a_with_statement(self):
        run, fake = self.start([])
        for call in (run.batches, lambda: run.evaluate(None)):
            with self.assertRaisesRegex(thermocline.Error, 'in a `with` statement: `with thermocline.worker.. as'):
                call()
        with run:
            list(run.batches())
        self.finish(fake)
        block = thermocline.local('job.textproto')
        for name in ('embeddings', 'batches', 'job'):
            with self.assertRaisesRegex(thermocline.Error, 'The job starts in a `with` statement'):
                getattr(block, name)
        self.assertFalse(hasattr(block, 'no_such'))

    def test_what_a_local_job_takes_is_checked_before_it_starts(self):
        with self.assertRaisesRegex(thermocline.Error, "takes a dict of the job's fields, .*, and not 'train.passes=2"):
            thermocline.local('job.textproto', set='train.passes=2')
        with self.assertRaisesRegex(thermocline.Error, 'needs the run_dir of the job'):
            thermocline.local('job.textproto', resume=True)

    def test_the_worker_s_end_ends_the_script(self):
        run, fake = self.start([*random_batches(1), ('end', 'the job has ended: disk full')])
        with self.assertRaisesRegex(thermocline.WorkerGone, 'disk full'):
            with run:
                for _ in run.batches():
                    run.skip()
        self.finish(fake)
        self.assertTrue(issubclass(thermocline.WorkerGone, thermocline.Error))

    def test_a_worker_that_dies_ends_the_script(self):
        run, fake = self.start(random_batches(2))
        with self.assertRaisesRegex(thermocline.WorkerGone, 'worker has ended'):
            with run:
                for _ in run.batches():
                    fake.socket.shutdown(2)
                    run.skip()
        fake.join()

    def test_a_run_that_nothing_refers_to_is_closed(self):
        run, fake = self.start(random_batches(1))
        run.__enter__()  # Its end is that of the process.
        batch = next(run.batches())
        numeric = batch.numeric
        run.skip()
        del run, batch
        gc.collect()
        self.assertTrue(np.array_equal(numeric.numpy(), random_batches(1)[0].numeric))  # It keeps the memory mapped.
        self.assertIsNone(fake.end)
        del numeric
        gc.collect()
        self.assertEqual(self.finish(fake).end, 'closed')

    def test_ctrl_c_ends_a_wait(self):
        waits, go_on = threading.Event(), threading.Event()
        run, fake = self.start([('wait', go_on), *random_batches(1)])

        def interrupt():
            waits.wait()
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        with self.assertRaises(KeyboardInterrupt):
            with run:
                waits.set()
                list(run.batches())
        go_on.set()
        self.assertIn('KeyboardInterrupt', self.finish(fake).end)

    # Steps that are not
    # ------------------------------------------------------------------------------------------------------------------

    def test_a_batch_is_closed_once(self):
        run, fake = self.start(random_batches(2))
        with run:
            net = Net(run)
            for call in (lambda: run.step(1.0), run.skip, lambda: run.backward(torch.zeros(()))):
                with self.assertRaisesRegex(thermocline.Error, 'there is none yet: take it from run.batches'):
                    call()
            for batch in run.batches():
                self.step(run, net, batch)
                for call in (lambda: run.step(1.0), run.skip, lambda: run.backward(torch.zeros(()))):
                    with self.assertRaisesRegex(thermocline.Error, 'Step %d is closed already' % batch.step):
                        call()
        self.assertEqual(len(self.finish(fake).steps), 2)

    def test_a_batch_that_is_not_closed_is_an_error(self):
        run, fake = self.start(random_batches(2))
        with self.assertRaisesRegex(thermocline.Error, 'Step 0 is not closed: call run.step'):
            with run:
                for _ in run.batches():
                    with self.assertRaisesRegex(thermocline.Error, 'Step 0 is not closed'):
                        run.batches()
                    with self.assertRaisesRegex(thermocline.Error, 'Step 0 is not closed'):
                        run.evaluate(None)
        self.assertIn('Step 0 is not closed', self.finish(fake).end)

    def test_a_backward_pass_is_needed(self):
        run, fake = self.start(random_batches(3))
        with run:
            net = Net(run)
            for batch in run.batches():
                loss = net(batch).mean()
                if batch.step == 1:
                    loss = net.top(torch.zeros(1, 8)).mean()  # It has nothing to do with the batch.
                    loss.backward()
                if batch.step == 2:
                    with torch.no_grad():
                        loss = net(batch).mean()
                with self.assertRaisesRegex(thermocline.Error, 'Step %d: no gradient has reached the emb' % batch.step):
                    run.step(loss)
                self.step(run, net, batch)
        self.assertEqual(len(self.finish(fake).steps), 3)

    def test_other_threads_are_refused(self):
        run, fake = self.start(random_batches(1))
        messages = []

        def other():
            for call in (lambda: run.step(1.0), run.skip, lambda: next(run.batches())):
                try:
                    call()
                except thermocline.Error as error:
                    messages.append(str(error))
        with run:
            net = Net(run)
            for batch in run.batches():
                net(batch).sum().backward()
                thread = threading.Thread(target=other)
                thread.start()
                thread.join()
                run.step(1.0)
        self.assertEqual(self.finish(fake).end, 'done')
        self.assertEqual(len(messages), 3)
        for message in messages[:2]:
            self.assertRegex(message, '^Another thread has connected this run')

    def test_forked_children_are_refused_and_end_nothing(self):
        run, fake = self.start(random_batches(2))
        texts = []
        with run:
            net = Net(run)
            for batch in run.batches():
                net(batch).sum().backward()
                read, write = os.pipe()
                child = os.fork()
                if child == 0:
                    try:
                        run.step(1.0)
                    except thermocline.Error as error:
                        os.write(write, str(error).encode())
                    try:
                        thermocline.worker()
                    except thermocline.Error as error:
                        os.write(write, b'|' + str(error).encode())
                    with contextlib.suppress(BaseException):
                        run.__exit__(None, None, None)
                    del batch, net, run
                    os._exit(0)
                os.close(write)
                with open(read) as pipe:
                    texts.append(pipe.read())
                os.waitpid(child, 0)
                run.step(1.0)
        self.assertEqual(self.finish(fake).end, 'done')
        self.assertEqual(len(fake.steps), 2)
        for text in texts:
            self.assertRegex(text, r'^Process \d+ is a forked child of the script: .*\|No worker has started this')

    # Evaluation
    # ------------------------------------------------------------------------------------------------------------------

    def test_evaluations_see_the_model_as_it_is(self):
        plan = random_batches(4)
        figures = {'phase': 'evaluated', 'metrics': {'auc': 0.5}}
        run, fake = self.start([plan[0], ('eval', plan[1]), ('phase', figures), plan[2]], held_out=[plan[3], plan[1]])
        expected = []
        with run:
            net = Net(run)
            net.norm.eval()  # A part that is not trained.

            def score(batch):
                self.assertFalse(torch.is_grad_enabled())
                self.assertTrue(batch.is_evaluation)
                self.assertFalse(any(leaf.requires_grad for leaf in batch.leaves))
                self.assertFalse(net.training or net.drop.training)
                expected.append(net.top(net.norm(net.embeddings(batch).flatten(1))))
                return expected[-1]
            net.forward, train = score, net.forward
            self.assertEqual(run.metrics, {})
            for batch in run.batches(evaluate=net):
                self.assertTrue(net.training and net.drop.training and not net.norm.training)
                loss = train(batch).mean()
                loss.backward()
                run.step(loss)
            self.assertEqual(run.metrics, {'auc': 0.5})
            self.assertEqual(run.evaluate(net), {'auc': 0.75, 'logloss': 0.5})
        self.assertEqual(self.finish(fake).end, 'done')
        self.assertEqual(run.metrics, {'auc': 0.75, 'logloss': 0.5})
        self.assertEqual(len(fake.scores), 3)
        for scores, logits in zip(fake.scores, expected):
            self.assertTrue(np.array_equal(scores, logits.reshape(-1).numpy()))
        self.assertTrue(net.training and net.drop.training and not net.norm.training)

    def test_a_function_may_score(self):
        run, fake = self.start([], held_out=random_batches(1))
        with run:
            list(run.batches())
            run.evaluate(lambda batch: batch.numeric[:, 0].double())
            run.evaluate(lambda batch: batch.numeric[:, 1])  # Each call scores.
        self.finish(fake)
        for column, scores in enumerate(fake.scores):
            self.assertTrue(np.array_equal(scores, random_batches(1)[0].numeric[:, column]))
        self.assertEqual((len(fake.scores), fake.warnings), (2, []))

    def test_functions_score_in_evaluation_mode(self):
        """What they refer to by name, whose methods they are, and what is tracked; also where train() is overridden."""
        class Overridden(Net):
            def train(self, mode=True):
                calls.append(mode)
                super().train(mode)
                self.norm.eval()
                return self

        plan = random_batches(3)
        for make in (Net, Overridden):
            for score in (lambda net: (lambda batch: net(batch)), lambda net: net.__call__, lambda net: net,
                          lambda net: (lambda batch, nets=(net,): nets[0](batch))):
                run, fake = self.start([plan[0], ('eval', plan[1]), plan[2]])
                calls = []
                with run:
                    net = make(run)
                    net.drop.register_forward_hook(lambda module, *_: modes.append(module.training))
                    if getattr(score(net), '__defaults__', None):
                        run.track(net=net)
                    modes, means = [], []
                    for batch in run.batches(evaluate=score(net)):
                        self.step(run, net, batch)
                        means.append(net.norm.running_mean.clone())
                        modes.append([module.training for module in net.modules()])
                self.assertEqual(self.finish(fake).end, 'done')
                before, after = modes[1], modes[-1]
                self.assertEqual([modes[0], modes[2], modes[3]], [True, False, True])
                self.assertEqual(before, after)
                self.assertEqual(calls, [False, True] if make is Overridden else [])

    def test_probabilities_in_place_of_logits_are_pointed_out(self):
        plan = random_batches(4)
        for score, expected in ((torch.sigmoid, 1), (lambda logits: logits, 0), (torch.zeros_like, 0)):
            run, fake = self.start([('eval', *plan), plan[0], ('eval', *plan)])
            with run:
                for _ in run.batches(evaluate=lambda batch: score(batch.numeric[:, 0])):
                    run.skip()
            self.assertEqual(self.finish(fake).end, 'done')
            self.assertEqual(len(fake.warnings), expected)
            self.assertTrue(all('They are logits, not probabilities' in text for text in fake.warnings))

    def test_the_script_may_have_a_metric_of_its_own(self):
        plan = random_batches(5)
        for batch in plan[3:]:
            batch.weights = np.arange(6, dtype=np.float32)
        run, fake = self.start([plan[0], ('eval', plan[1], plan[2]), plan[0]], held_out=plan[3:],
                               facts={'own_metric': 'hits'})
        calls = []

        def metric(logits, labels, weights):
            calls.append((logits, labels, weights))
            return (logits * labels).sum()

        def score(batch):
            return batch.numeric[:, 0]
        with run:
            with self.assertRaisesRegex(thermocline.Error, r"metric 'hits' .*run.batches\(evaluate=net, metric=func"):
                run.batches(evaluate=score)
            with self.assertRaisesRegex(thermocline.Error, r"metric 'hits' .*run.evaluate\(net, metric=function"):
                run.evaluate(score)
            for _ in run.batches(evaluate=score, metric=metric):
                run.skip()
            run.evaluate(score)
        self.assertEqual(self.finish(fake).end, 'done')
        for (logits, labels, weights), batches in zip(calls, (plan[1:3], plan[3:])):
            self.assertTrue(np.array_equal(logits, np.concatenate([batch.numeric[:, 0] for batch in batches])))
            self.assertTrue(np.array_equal(labels, np.concatenate([batch.labels for batch in batches])))
            self.assertEqual(weights is None, batches[0].weights is None)
        self.assertTrue(np.array_equal(calls[1][2], [0, 1, 2, 3, 4, 5] * 2))
        self.assertEqual(fake.own_metrics, [float((logits * labels).sum()) for logits, labels, _ in calls])
        run, fake = self.start([], held_out=plan[:1])
        with self.assertRaisesRegex(thermocline.Error, r'The metric returns one number, and not a tensor \[6\]'):
            with run:
                list(run.batches())
                run.evaluate(score, metric=lambda logits, labels, weights: logits)
        self.finish(fake)

    def test_what_evaluations_draw_changes_no_training(self):
        plan, draw = random_batches(3), np.random.rand

        def drawn(*evaluation):
            run, fake = self.start([plan[0], *evaluation, plan[1]])
            draws = []
            torch.manual_seed(3)
            random.seed(3)
            np.random.seed(3)
            with run:
                for _ in run.batches(evaluate=lambda batch: torch.rand(batch.size) + random.random() + draw()):
                    draws.append((torch.rand(1).item(), random.random(), np.random.rand()))
                    run.skip()
            self.assertEqual(self.finish(fake).end, 'done')
            return draws
        self.assertEqual(drawn(('eval', plan[2])), drawn())

    def test_an_evaluation_needs_a_module(self):
        run, fake = self.start([('eval', random_batches(1)[0])])
        with self.assertRaisesRegex(thermocline.Error, 'The job evaluates while it trains: give a module'):
            with run:
                run.batches()
        self.finish(fake)

    def test_an_evaluation_needs_one_logit_a_sample(self):
        for wrong, message in ((lambda batch: batch.numeric, r'6 of them, and got a tensor \[6, 3\]'),
                               (lambda batch: 0.5, '6 of them, and got of type float')):
            run, fake = self.start([], held_out=random_batches(1))
            with self.assertRaisesRegex(thermocline.Error, message):
                with run:
                    list(run.batches())
                    run.evaluate(wrong)
            self.assertRegex(self.finish(fake).end, message)

    def test_a_failed_evaluation_leaves_the_modes(self):
        run, fake = self.start([], held_out=random_batches(1))
        net = nn.Linear(1, 1)
        with self.assertRaises(Exception):
            with run:
                list(run.batches())
                run.evaluate(net)
        self.finish(fake)
        self.assertTrue(net.training)

    def test_an_evaluation_comes_after_training(self):
        run, fake = self.start(random_batches(1))
        with self.assertRaisesRegex(thermocline.Error, 'run.evaluate.. comes after training'):
            with run:
                run.evaluate(lambda batch: batch.label)
        fake.join()

    # Installation
    # ------------------------------------------------------------------------------------------------------------------

    def test_a_script_needs_a_worker(self):
        with unittest.mock.patch.dict(os.environ, THERMOCLINE_LIBRARY=LIBRARY):
            os.environ.pop('THERMOCLINE_WORKER', None)
            with self.assertRaisesRegex(thermocline.Error, 'No worker has started this process: start the script by'):
                thermocline.worker()

    def test_versions_are_compared(self):
        with self.assertRaisesRegex(thermocline.Error, 'worker is of version 9.9 .*both must be of one build'):
            self.start([], version='9.9')
        os.close(int(os.environ.pop('THERMOCLINE_WORKER').split(':')[0]))  # As the end of the script does.
        self.assertEqual(self.finish(self.fakes[-1]).end, 'closed')
        with unittest.mock.patch.object(_library, 'VERSION', '9.9'):
            with self.assertRaisesRegex(thermocline.Error, 'has version 9.9 and its library .* version 0.* Install'):
                _library.load_library()
        self.assertEqual(thermocline.__version__, _library.load_library().tc_version().decode())

    def test_a_library_that_is_not_there_is_named(self):
        with unittest.mock.patch.dict(os.environ, THERMOCLINE_LIBRARY='/not/there.so'):
            with self.assertRaisesRegex(thermocline.Error, 'load its library /not/there.so: .*Install the wheel'):
                thermocline.worker()

    def python(self, code):
        """What a Python without PyTorch prints."""
        code = 'import sys; sys.dont_write_bytecode = True; sys.modules["torch"] = None; sys.path.insert(0, %r); ' \
            % PACKAGE + code
        done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
        return done.stdout + done.stderr

    def test_pytorch_is_imported_late(self):
        out = self.python('import thermocline; print(thermocline.__version__, thermocline.Error.__name__)')
        self.assertEqual(out, thermocline.__version__ + ' Error\n')
        for name in ('worker()', 'Run', 'Batch'):
            out = self.python('import thermocline; thermocline.' + name)
            self.assertRegex(out, r'Error: The package thermocline needs PyTorch 1.13 or newer, .*pip install')

    def test_help_reads_well(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            pydoc.help(thermocline)
        for text in ('with thermocline.worker() as run:', 'run.step(loss)', 'exactly once'):
            self.assertIn(text, out.getvalue())
        self.assertLess(len(out.getvalue().splitlines()), 500)
        self.assertNotIn('register_forward_hook', out.getvalue())
        for name in [*thermocline.__all__, *thermocline._MODULES]:
            value = getattr(thermocline, name)
            if not isinstance(value, str):
                self.assertTrue(value.__doc__, name)
        for name, member in vars(thermocline.Run).items():
            self.assertTrue(name.startswith('_') or member.__doc__, name)
        with self.assertRaisesRegex(AttributeError, "no attribute 'wroker'"):
            thermocline.wroker
        self.assertLessEqual({*thermocline.__all__, *thermocline._MODULES, 'WorkerGone'}, set(dir(thermocline)))
        without_torch = self.python('import thermocline; print("Run" in dir(thermocline)); help(thermocline)')
        self.assertIn('Starts a job on this machine', without_torch)
        self.assertTrue(without_torch.startswith('False\n'))


if __name__ == '__main__':
    unittest.main()
