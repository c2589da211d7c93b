"""Parquet files, and objects of an S3 store: the same model as from text on this machine.

Needs Arrow C++ in the build, and for s3:// a small S3 server (moto): `deploy/setup.sh --tests` fetches both; what needs
one that is not there is skipped.
"""

import gzip
import http.client
import json
import os
import re
import subprocess
import sys
import unittest

from data_test import AS_CSV, MODEL, SHORT
from harness import DEADLINE_S, THERMOCLINE, ProcessTest, wait_for

SHARE = os.path.expanduser('~/.local/share/thermocline')
ARROW = os.environ.get('THERMOCLINE_ARROW_HOME') or os.path.join(SHARE, 'arrow')
MOTO = os.path.join(SHARE, 'tests/bin/moto_server')

try:
    sys.dont_write_bytecode = True
    sys.modules.setdefault('numpy', None)  # Debian's is too old for it, and not needed.
    sys.path.insert(0, ARROW)
    import pyarrow
    import pyarrow.csv
    import pyarrow.parquet
except ImportError as error:
    pyarrow = None
    print('SKIPPED: %s; deploy/setup.sh fetches it' % error, flush=True)

PARQUET = """
name: "parquet" seed: 7
data {
  train { path: "%s" parquet {} }
  split { last_share: 0.2 }
  label { column: "label" }
}
feature { column: "C1..C26" categorical { id: HEX } }
feature { column: "I1..I13" numeric { missing: 0 transform { log1p {} } } }
""" + MODEL

COLUMNS = ['label'] + ['I%d' % i for i in range(1, 14)] + ['C%d' % i for i in range(1, 27)]


@unittest.skipIf(pyarrow is None, 'no Arrow: deploy/setup.sh fetches it')
class ParquetTest(ProcessTest):
    def write_job(self, text, name):
        path = '%s-%s.textproto' % (self.run_dir, name)
        with open(path, 'w') as job:
            job.write(text)
        return path

    def digest(self, text, name, *flags):
        summary = self.train(*flags, job=self.write_job(text, name),
                             run_dir='%s-%s' % (self.run_dir, name))
        return summary['model_digest'], summary['eval_samples'], summary['auc']

    # A log as text; days/ has the same rows as Parquet files and text/ as gzip.
    def write_log(self):
        folder = self.run_dir + '-data'
        subprocess.run([THERMOCLINE, 'generate', folder, '--format=tsv', '--rows=3000',
                        '--test-rows=0', '--shrink=1000', '--threads=1'],
                       check=True, stdout=subprocess.DEVNULL, timeout=DEADLINE_S)
        path = os.path.join(folder, 'train.tsv')
        types = {name: pyarrow.string() if name[0] == 'C' else pyarrow.int64() for name in COLUMNS}
        table = pyarrow.csv.read_csv(
            path, read_options=pyarrow.csv.ReadOptions(column_names=COLUMNS),
            parse_options=pyarrow.csv.ParseOptions(delimiter='\t'),
            convert_options=pyarrow.csv.ConvertOptions(column_types=types))
        days, texts = os.path.join(folder, 'days'), os.path.join(folder, 'text')
        os.mkdir(days)
        os.mkdir(texts)
        with open(path) as file:
            lines = file.readlines()
        for day, (begin, end) in enumerate([(0, 1), (1, 1700), (1700, table.num_rows)]):
            pyarrow.parquet.write_table(table.slice(begin, end - begin).select(COLUMNS[::-1]),
                                        '%s/day-%d.parquet' % (days, day), row_group_size=500,
                                        use_dictionary=day != 1)
            with gzip.open('%s/day-%d.gz' % (texts, day), 'wt') as file:
                file.writelines(lines[begin:end])
        return folder, path

    def test_the_same_rows_make_the_same_model(self):
        folder, path = self.write_log()
        text = self.digest(SHORT % path, 'text')
        self.assertEqual(self.digest(PARQUET % (folder + '/days'), 'parquet'), text)
        # Ended in the middle of a row group, and resumed.
        job = self.write_job(PARQUET % (folder + '/days') + 'checkpoint {}', 'half')
        self.run_dir += '-half'
        self.train('--set=train.max_steps=4', job=job, run_dir=self.run_dir)
        self.assertEqual(self.resume('--clear=train.max_steps')['model_digest'], text[0])

    def test_what_is_wrong_with_a_file_comes_first(self):
        folder, _ = self.write_log()
        days, job = folder + '/days', self.write_job(PARQUET % (folder + '/days'), 'wrong')
        day = pyarrow.parquet.read_table(days + '/day-2.parquet')
        other = day.set_column(day.schema.get_field_index('I2'), 'I2',
                               day.column('I2').cast(pyarrow.string()))
        pyarrow.parquet.write_table(other, days + '/day-2.parquet')
        self.assertEqual(self.first_line(job, 'types'), "%s/day-2.parquet: the column 'I2' is of type "
                         'string, not int64 as in %s/day-0.parquet' % (days, days))
        os.truncate(days + '/day-2.parquet', os.path.getsize(days + '/day-2.parquet') // 2)
        self.assertTrue(self.first_line(job, 'cut').startswith(days + '/day-2.parquet: Parquet magic bytes '
                                                               'not found in footer'))

    def first_line(self, job, name):
        code, _, err = self.finish(self.start(job=job, run_dir='%s-%s' % (self.run_dir, name)))
        self.assertEqual(code, 1)
        prefix = 'thermocline: job parquet: '
        self.assertTrue(err.startswith(prefix), err)
        return err[len(prefix):].splitlines()[0]

    # ---- objects

    def start_store(self, **environment):
        if not os.access(MOTO, os.X_OK):
            self.skipTest('no moto: deploy/setup.sh --tests fetches it')
        log = open(self.run_dir + '-moto.log', 'w+')
        server = subprocess.Popen([MOTO, '-H', '127.0.0.1', '-p', '0'], stdout=log, stderr=log,
                                  env=dict(environment, PATH='/usr/bin:/bin', HOME=self.run_dir))

        def stop():
            server.kill()
            server.wait()
            log.close()

        self.addCleanup(stop)

        def port():
            self.assertIsNone(server.poll(), 'the server ended')
            with open(log.name) as text:
                found = re.search(r'http://127.0.0.1:(\d+)', text.read())
            return found and int(found.group(1))

        return wait_for(port, 'the S3 server')

    @staticmethod
    def put(port, path, data=b''):
        connection = http.client.HTTPConnection('127.0.0.1', port, timeout=DEADLINE_S)
        connection.request('PUT', path, body=data)
        status = connection.getresponse().status
        connection.close()
        if status != 200:
            raise AssertionError('PUT %s: %d' % (path, status))

    def set_environment(self, **values):
        # Nothing of this machine's own, and no request to a metadata service.
        wanted = dict(AWS_EC2_METADATA_DISABLED='true', AWS_CONFIG_FILE='/dev/null',
                      AWS_SHARED_CREDENTIALS_FILE='/dev/null', AWS_ACCESS_KEY_ID=None,
                      AWS_SECRET_ACCESS_KEY=None, AWS_SESSION_TOKEN=None, AWS_PROFILE=None)
        wanted.update(values)
        for name, value in wanted.items():
            before = os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
            self.addCleanup(lambda name=name, before=before: (
                os.environ.pop(name, None) if before is None else os.environ.update({name: before})))

    def test_objects_make_the_same_model_as_files(self):
        port = self.start_store()
        folder, path = self.write_log()
        self.put(port, '/logs')
        for kind in ('days', 'text'):
            for name in os.listdir(os.path.join(folder, kind)):
                with open(os.path.join(folder, kind, name), 'rb') as file:
                    self.put(port, '/logs/%s/%s' % (kind, name), file.read())
        self.put(port, '/logs/days/_SUCCESS')
        # Large enough that reading begins amid it: where it was ended, and at the held-out rows.
        with open(path) as file:
            wide = ''.join('%s\t%s\n' % (line[:-1], 'x' * 3000) for line in file)
        self.put(port, '/logs/wide/day-0', wide.encode())
        self.set_environment(AWS_ACCESS_KEY_ID='test', AWS_SECRET_ACCESS_KEY='test')
        endpoint = '--set=data.s3.endpoint=http://127.0.0.1:%d' % port
        text = self.digest(SHORT % path, 'text')
        self.assertEqual(self.digest(PARQUET % 's3://logs/days/', 'folder', endpoint), text)
        self.assertEqual(self.digest(PARQUET % 's3://logs/days/day-[0-2].parquet', 'pattern',
                                     endpoint), text)
        self.assertEqual(self.digest(AS_CSV % 's3://logs/text', 'csv', endpoint), text)
        job = self.write_job(AS_CSV.replace('"C1..C26"]', '"C1..C26", "note"]') % 's3://logs/wide' +
                             'checkpoint {}', 'wide')
        self.run_dir += '-wide'
        self.train(endpoint, '--set=train.max_steps=7', job=job, run_dir=self.run_dir)
        index = os.path.join(self.run_dir, 'data_index')
        self.assertEqual(len(os.listdir(index)), 1)
        self.assertEqual(self.resume('--clear=train.max_steps')['model_digest'], text[0])
        self.assertEqual(len(os.listdir(index)), 1)

    def inspect(self, *paths):
        done = self.thermocline('inspect', *paths, '--json')
        self.assertEqual(done.returncode, 0, done.stderr)
        figures = json.loads(done.stdout)
        del figures['paths']
        return figures

    def test_objects_are_inspected_as_files_are(self):
        port = self.start_store()
        folder, _ = self.write_log()
        self.put(port, '/logs')
        for kind in ('days', 'text'):
            for name in os.listdir(os.path.join(folder, kind)):
                with open(os.path.join(folder, kind, name), 'rb') as file:
                    self.put(port, '/logs/%s/%s' % (kind, name), file.read())
        self.set_environment(AWS_ACCESS_KEY_ID='test', AWS_SECRET_ACCESS_KEY='test',
                             AWS_ENDPOINT_URL='http://127.0.0.1:%d' % port)
        for kind in ('days/', 'text/'):
            figures = self.inspect('s3://logs/' + kind)
            self.assertEqual(figures, self.inspect(os.path.join(folder, kind)))
            self.assertGreater(figures['bytes'], 0)
        mixed = self.thermocline('inspect', 's3://logs/days/day-0.parquet',
                                 os.path.join(folder, 'text', os.listdir(folder + '/text')[0]))
        self.assertEqual(mixed.returncode, 2)
        self.assertIn('name files of one kind', mixed.stderr)
        missing = self.thermocline('inspect', 's3://logs/none.csv')
        self.assertEqual(missing.returncode, 2)
        self.assertIn("s3://logs/none.csv: the bucket 'logs' has no such key", missing.stderr)
        # The job's own words for the store, and none of the environment's.
        self.set_environment(AWS_ACCESS_KEY_ID='test', AWS_SECRET_ACCESS_KEY='test', AWS_ENDPOINT_URL=None)
        job = self.write_job(PARQUET % 's3://logs/days/', 'plan')
        plan = self.thermocline('plan', job, '--scan', '--set=data.s3.endpoint=http://127.0.0.1:%d' % port)
        self.assertIn(plan.returncode, (0, 1), plan.stderr)
        self.assertIn('rows', plan.stdout)

    def refusal(self, path, *flags):
        done = self.thermocline('train', self.write_job(PARQUET % path, 'refused'), '--run-dir',
                                self.run_dir, *flags)
        self.assertEqual(done.returncode, 2, done.stderr)
        return done.stderr

    def test_errors_of_a_store_are_named(self):
        port = self.start_store()
        self.put(port, '/logs')
        self.put(port, '/logs/a.parquet', b'PAR1')
        endpoint = '--set=data.s3.endpoint=http://127.0.0.1:%d' % port
        self.set_environment()
        self.assertIn('data.train.path s3://logs/a.parquet: there are no credentials; set AWS_ACCESS_KEY_ID '
                      'and AWS_SECRET_ACCESS_KEY', self.refusal('s3://logs/a.parquet', endpoint))
        self.set_environment(AWS_ACCESS_KEY_ID='test', AWS_SECRET_ACCESS_KEY='test')
        self.assertIn("s3://none/a.parquet: there is no bucket 'none' at http://127.0.0.1:%d "
                      '(data.s3.endpoint, or AWS_ENDPOINT_URL)' % port,
                      self.refusal('s3://none/a.parquet', endpoint))
        self.assertIn("s3://logs/b.parquet: the bucket 'logs' has no such key",
                      self.refusal('s3://logs/b.parquet', endpoint))
        self.assertIn('s3://logs/b-*.parquet: no object matches the pattern',
                      self.refusal('s3://logs/b-*.parquet', endpoint))
        self.assertIn('s3://logs: names no object; it is s3://BUCKET/KEY',
                      self.refusal('s3://logs', endpoint))
        self.assertIn("data.s3.endpoint (or AWS_ENDPOINT_URL) is 'localhost', not http://HOST:PORT",
                      self.refusal('s3://logs/a.parquet', '--set=data.s3.endpoint=localhost'))
        # A port that nothing listens on.
        said = self.refusal('s3://logs/a.parquet', '--set=data.s3.endpoint=http://127.0.0.1:1')
        self.assertIn('s3://logs/a.parquet: no answer at http://127.0.0.1:1 (data.s3.endpoint, or '
                      'AWS_ENDPOINT_URL); ', said)
        self.assertIn('NETWORK_CONNECTION', said)

    def test_credentials_that_a_store_refuses_are_named(self):
        # The requests that make the object need none.
        port = self.start_store(INITIAL_NO_AUTH_ACTION_COUNT='2')
        self.put(port, '/logs')
        self.put(port, '/logs/a.parquet', b'PAR1')
        self.set_environment(AWS_ACCESS_KEY_ID='test', AWS_SECRET_ACCESS_KEY='test')
        said = self.refusal('s3://logs/a.parquet',
                            '--set=data.s3.endpoint=http://127.0.0.1:%d' % port)
        self.assertIn('data.train.path s3://logs/a.parquet: the credentials (AWS_ACCESS_KEY_ID and '
                      'AWS_SECRET_ACCESS_KEY, or AWS_PROFILE) are wrong, or do not allow to read it; ',
                      said)


if __name__ == '__main__':
    unittest.main()
