"""A log of one's own: inspected, turned into a job, planned and trained."""

import json
import os
import random
import signal
import subprocess
import unittest

from harness import THERMOCLINE, ProcessTest, children, set_signals, wait_for


class InspectTest(ProcessTest):
    def write(self, name, text, mode='w'):
        path = '%s-%s' % (self.run_dir, name)
        with open(path, mode) as file:
            file.write(text)
        return path

    def shop_log(self, rows=4000):
        """Clicks that the item decides, in no order of time."""
        random.seed(1)
        lines = ['time,user,item,price,tags,row,click']
        for i in range(rows):
            item = random.randint(0, 80)
            clicks = random.random() < (0.8 if item % 3 == 0 else 0.1)
            lines.append('2026-11-%02d 10:%02d:00,u%d,i%d,%s,%s,%d,%d' % (
                random.randint(1, 24), i % 60, random.randint(0, 99), item,
                random.choice(['', '3.5', '20', '1000']), random.choice(['a|b', 'c', 'b|c|d']),
                i, clicks))
        return self.write('shop.csv', '\n'.join(lines) + '\n')

    def inspect(self, *arguments, code=0):
        done = self.thermocline('inspect', *arguments)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_a_log_becomes_a_job_that_trains(self):
        log = self.shop_log()
        job = self.run_dir + '-first.textproto'
        shown = self.inspect(log, '--job', job).stdout
        self.assertIn('4,000 rows, 7 columns', shown)
        self.assertIn('label: click, rate 0.', shown)
        with open(job) as file:
            text = file.read()
        self.assertIn('split { column: "time" test_from: "2026-11-', text)
        self.assertIn('# Left out: row, it has another value in nearly every row', text)
        self.assertIn('name: "hour_of_day"', text)
        summary = self.train(job=job, run_dir=self.run_dir)
        self.assertGreater(summary['auc'], 0.75)
        self.assertGreater(summary['eval_samples'], 100)
        # A file is never overwritten, whatever it is.
        again = self.inspect(log, '--job', job, code=2)
        self.assertIn('exists; inspect overwrites no file', again.stderr)
        with open(job) as file:
            self.assertEqual(file.read(), text)

    def test_the_plan_is_near_what_the_servers_report(self):
        log = self.shop_log()
        job = self.run_dir + '-first.textproto'
        figures = self.write('figures.json', self.inspect(log, '--job', job, '--json').stdout)
        blind = json.loads(self.thermocline('plan', job, '--json').stdout)
        self.assertFalse(blind['complete'])
        known = self.thermocline('plan', job, '--figures', figures, '--servers', '2', '--json')
        self.assertEqual(known.returncode, 0, known.stderr)
        scanned = self.thermocline('plan', job, '--scan', '--servers', '2', '--json')
        plan = json.loads(known.stdout)
        self.assertTrue(plan['complete'])
        self.assertEqual(json.loads(scanned.stdout)['tables'], plan['tables'])
        self.assertIn('memory: ', self.thermocline('plan', job, '--figures', figures).stdout)
        self.train('--servers=2', job=job, run_dir=self.run_dir)
        with open(os.path.join(self.run_dir, 'server_stats.json')) as file:
            servers = json.load(file)['servers']
        for table in plan['tables']:
            rows = size = 0
            for server in servers:
                for stats in server['stats']['tables']:
                    if stats['name'] == table['name']:
                        rows += int(stats['rows'])
                        size += int(stats['bytes'])
            # Two digits of a time may be anything up to 99.
            if table['name'] == 'hour_of_day':
                self.assertEqual((rows, table['rows']), (1, 100))
                continue
            self.assertEqual(rows, table['rows'], table)
            # So small a table is mostly slack.
            self.assertLess(abs(size - table['memory_bytes']), 64 << 10, table)

    def test_a_label_and_columns_are_named(self):
        rows = '\n'.join('%d,%s' % (i % 7, ['view', 'buy', 'cart'][i % 3]) for i in range(300))
        log = self.write('events.csv', rows + '\n')
        job = self.run_dir + '-job.textproto'
        self.inspect(log, '--columns=item,event', '--label=event', '--positive=buy', '--job', job)
        with open(job) as file:
            text = file.read()
        self.assertIn('column: ["item", "event"]', text)
        self.assertIn('label { column: "event" positive: ["buy"] }', text)
        self.train(job=job, run_dir=self.run_dir)
        wrong = self.inspect(log, '--columns=item,event', '--label=evnt', code=2)
        self.assertIn("there is no such column (did you mean 'event'?)", wrong.stderr)

    def test_several_labels_become_tasks(self):
        log = self.write('two.csv', 'item,click,buy\n' + ''.join(
            '%d,%d,%s\n' % (i % 7, i % 3 == 0, '' if i % 5 == 0 else ['no', 'yes'][i % 6 == 0]) for i in range(600)))
        job = self.run_dir + '-two.textproto'
        shown = self.inspect(log, '--label=click,buy', '--model=mmoe', '--job', job).stdout
        self.assertIn('label: buy (yes are 1), rate 0.1667; --label names it', shown)
        summary = self.train(job=job, run_dir=self.run_dir)
        self.assertEqual([task['label'] for task in summary['tasks']], ['click', 'buy'])

    def test_the_generated_logs_are_known(self):
        for form in ('npy', 'tsv'):
            folder = '%s-%s' % (self.run_dir, form)
            self.thermocline('generate', folder, '--format', form, '--rows=2000', '--test-rows=0',
                             '--shrink=1000', '--threads=1')
            log = folder if form == 'npy' else folder + '/train.tsv'
            job = folder + '.textproto'
            figures = json.loads(self.inspect(log, '--json', '--job', job).stdout)
            self.assertEqual(figures['format'], 'npy' if form == 'npy' else 'criteo_tsv')
            self.assertEqual(figures['rows'], 2000)
            self.assertEqual(len(figures['columns']), 40)
            self.train(job=job, run_dir=folder + '-run')

    def test_what_is_no_log_is_named(self):
        for name, content, said in (
                ('empty.csv', b'', 'is empty'),
                ('one.csv', b'1\n2\n', 'has one column only'),
                ('binary', b'\x7fELF\0\0,\0\n\0,\n', 'is no text'),
                ('ragged.csv', b'1,2\n1,2,3\n1,2,3,4\n', 'different numbers of columns')):
            path = self.write(name, content, 'wb')
            done = self.inspect(path, code=2)
            self.assertIn(said, done.stderr)
            self.assertIn(path, done.stderr)
            self.assertEqual(done.stdout, '')
        self.assertIn('No such file', self.inspect('/no/such/log', code=2).stderr)
        self.assertIn('FILE is required', self.inspect(code=2).stderr)
        unknown = self.inspect('/no/log', '--job', self.run_dir + '-none', '--model=deepfn', code=2)
        self.assertIn('--model: deepfn not in {dlrm,wide_deep,deepfm,dcnv2,finalmlp,din,bst,tbsm,mmoe,ple}', unknown.stderr)
        self.assertIn('--model requires --job', self.inspect('/no/log', '--model=deepfm', code=2).stderr)
        self.assertIn("is not one character",
                      self.inspect('/no/log', '--separator=ab', code=2).stderr)
        unlabelled = self.write('ids.csv', 'user,item\n' + ''.join(
            'u%d,i%d\n' % (i % 90, i % 70) for i in range(200)))
        done = self.inspect(unlabelled, '--job', self.run_dir + '-none', code=2)
        self.assertIn('no column looks like a label; --label NAME', done.stderr)
        self.assertFalse(os.path.exists(self.run_dir + '-none'))

    def test_ctrl_c_ends_it_and_leaves_nothing(self):
        fifo = self.run_dir + '.fifo'
        os.mkfifo(fifo)
        job = self.run_dir + '-none'
        launcher = subprocess.Popen([THERMOCLINE, 'inspect', fifo, '--job', job], text=True,
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                    preexec_fn=set_signals)
        self.addCleanup(launcher.kill)
        wait_for(lambda: any('thermocline-inspect' in command
                             for command in children(launcher.pid).values()),
                 'the program that reads')
        launcher.send_signal(signal.SIGINT)
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 1)
        self.assertIn('stopped by signal 2', err)
        self.assertFalse(os.path.exists(job))

    def test_a_job_that_can_not_fit_is_refused_before_it_starts(self):
        refused = self.start('--set=dlrm.top=[65536, 65536, 65536, 65536, 65536, 65536, 65536]',
                             '--set=cluster.max_pending_size=1TiB')
        code, _, err = self.finish(refused)
        self.assertEqual(code, 2)
        self.assertIn("the dense parameters of the model's layers take", err)
        warned = self.start('--set=default_table.storage.rocksdb.memory=512TiB',
                            run_dir=self.run_dir + '-warned')
        code, _, err = self.finish(warned)
        self.assertEqual(code, 0, err)
        self.assertIn('warning: the memory budgets of tables', err)


if __name__ == '__main__':
    unittest.main()
