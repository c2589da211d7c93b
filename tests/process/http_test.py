"""The page and the metrics of a job over HTTP: who may ask, and that counters never fall."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import threading
import unittest
import urllib.parse

import browser
from harness import DEADLINE_S, ProcessTest, children, wait_for

MONITORING = os.path.dirname(os.path.realpath(os.path.join(
    os.environ.get('TEST_SRCDIR', ''), os.environ.get('TEST_WORKSPACE', ''),
    'deploy/monitoring/alerts.yml')))

# Servers that are killed are started again, and a worker that is killed makes the job go back.
KILLED = ['--servers=2', '--workers=2', '--set=cluster.durability=LOG_ASYNC',
          '--set=cluster.max_server_restarts=100', '--set=checkpoint.every_steps=20',
          '--set=checkpoint.max_rollbacks=100', '--set=evaluate.every_steps=50',
          '--set=cache.budget=1MiB']


class Door:
    """The web server of a run."""

    def __init__(self, run_dir, context=None):
        with open(os.path.join(run_dir, 'http.json')) as file:
            self.url = urllib.parse.urlsplit(json.load(file)['url'])
        with open(os.path.join(run_dir, 'http.token')) as file:
            self.token = file.read().strip()
        self.context = context

    def ask(self, path, method='GET', **headers):
        """(status, headers, body); a header of None is left out."""
        if self.context is None:
            connection = http.client.HTTPConnection(self.url.hostname, self.url.port, DEADLINE_S)
        else:
            connection = http.client.HTTPSConnection(self.url.hostname, self.url.port,
                                                     timeout=DEADLINE_S, context=self.context)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def get(self, path):
        """The body, by the token."""
        status, _, body = self.ask(path, Authorization='Bearer ' + self.token)
        if status not in (200, 204):
            raise AssertionError((status, body))
        return body

    def metrics(self):
        """{name with labels: value}, and the names of those that never fall."""
        def figures():
            status, _, body = self.ask('/metrics', Authorization='Bearer ' + self.token)
            return body if status == 200 else None  # 503: its process has just begun.
        text = wait_for(figures, 'figures')
        kinds = dict(re.findall(r'^# TYPE (\S+) (\S+)$', text, re.M))
        values = {}
        for name, labels, value in re.findall(r'^(\w+)({.*})? (\S+)$', text, re.M):
            values[name + labels] = float(value)
        counters = {each for each in values if is_counter(each.split('{')[0], kinds)}
        return values, counters


def is_counter(name, kinds):
    histogram = re.sub('_(bucket|sum|count)$', '', name)
    return kinds.get(name) == 'counter' or kinds.get(histogram) == 'histogram'


def sum_of(values, name, **labels):
    """The sum of all series of a name that have these labels; None: there is none."""
    found = [value for key, value in values.items() if key.split('{')[0] == name and
             all('%s="%s"' % label in key for label in labels.items())]
    return sum(found) if found else None


def free_port():
    with socket.socket() as listener:
        listener.bind(('127.0.0.1', 0))
        return listener.getsockname()[1]


class Prometheus:
    """A real one that scrapes a run."""

    def __init__(self, test, door, token_file):
        folder = test.run_dir + '-prometheus'
        os.mkdir(folder)
        self.port = free_port()
        config = os.path.join(folder, 'prometheus.yml')
        with open(config, 'w') as file:
            file.write("""
scrape_configs:
  - job_name: thermocline
    honor_labels: true
    scrape_interval: 500ms
    scrape_timeout: 400ms
    authorization: {credentials_file: '%s'}
    static_configs:
      - targets: ['%s']
        labels: {scraped: thermocline}
rule_files: ['%s']
""" % (token_file, door.url.netloc, os.path.join(MONITORING, 'alerts.yml')))
        with open(os.path.join(folder, 'log'), 'w') as log:
            self.process = subprocess.Popen(
                ['prometheus', '--config.file=' + config, '--storage.tsdb.path=' + folder + '/data',
                 '--web.listen-address=127.0.0.1:%d' % self.port], stdout=log, stderr=log)
        test.addCleanup(self.process.wait)
        test.addCleanup(self.process.kill)

    def query(self, expression):
        """[(labels, value)]; empty also before it is up."""
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=DEADLINE_S)
        try:
            connection.request('GET', '/api/v1/query?' + urllib.parse.urlencode({'query': expression}))
            answer = json.load(connection.getresponse())
        except (ConnectionError, json.JSONDecodeError):
            return []
        finally:
            connection.close()
        if answer['status'] != 'success':
            raise AssertionError((expression, answer))
        return [(each['metric'], float(each['value'][1])) for each in answer['data']['result']]


class HttpTest(ProcessTest):

    def start_with_door(self, *flags, **options):
        launcher = self.start_long('--http=127.0.0.1:0', *flags, **options)
        return launcher, Door(launcher.run_dir)

    def child_of(self, launcher):
        """The process behind the door; None: there is none now."""
        for pid, command in children(launcher.pid).items():
            if 'http-child' in command:
                return pid
        return None

    def stop(self, launcher):
        """Ends a job; returns what it has written."""
        launcher.send_signal(signal.SIGINT)
        _, out, err = self.finish(launcher)
        return out, err

    def test_whose_requests_are_answered(self):
        launcher, door = self.start_with_door()
        token_file = os.path.join(self.run_dir, 'http.token')
        self.assertEqual(stat.S_IMODE(os.stat(token_file).st_mode), 0o600)
        bearer = 'Bearer ' + door.token
        door.metrics()
        for path in ('/', '/api/job', '/metrics'):
            self.assertEqual(door.ask(path)[0], 401, path)
            self.assertEqual(door.ask(path, Authorization=bearer[:-1])[0], 401, path)
            self.assertEqual(door.ask(path, Authorization=bearer)[0], 200, path)
            self.assertEqual(door.ask(path, Authorization=bearer, Host='evil.example')[0], 403, path)
            self.assertEqual(door.ask(path, 'POST', Authorization=bearer)[0], 405, path)
            self.assertEqual(door.ask(path, 'HEAD', Authorization=bearer)[::2], (200, ''), path)
        self.assertEqual(door.ask('/etc/passwd', Authorization=bearer)[0], 404)
        self.assertEqual(door.ask('/?token=' + door.token[1:])[0], 401)
        status, headers, _ = door.ask('/?token=' + door.token)
        self.assertEqual((status, headers['Location']), (303, '/'))
        cookie = headers['Set-Cookie'].split(';')[0]
        status, headers, page = door.ask('/', Cookie=cookie)
        self.assertEqual((status, headers['Cache-Control']), (200, 'no-store'))
        self.assertIn('small', page)
        # The data, and what has changed since.
        document = json.loads(door.ask('/api/job', Cookie=cookie)[2])
        self.assertTrue(document['live'])
        status, _, changes = door.ask('/api/job?cursor=' + document['cursor'], Cookie=cookie)
        self.assertIn(status, (200, 204))
        self.assertLess(len(changes), len(json.dumps(document)))
        self.check_in_a_browser(door)
        # A reader of its console, which is no terminal, does not get the token.
        out, err = self.stop(launcher)
        self.assertIn('page: %s (token: %s)\n' % (door.url.geturl(), token_file), out)
        self.assertNotIn(door.token, out + err)
        self.assertFalse(os.path.exists(os.path.join(self.run_dir, 'http.json')))

    def check_in_a_browser(self, door):
        """The page follows the job, and the token is not in the address."""
        if not browser.CHROMIUM:
            print('there is no chromium: the page is not opened')
            return
        shown = browser.Browser()
        try:
            shown.open('%s?token=%s' % (door.url.geturl(), door.token))
            self.assertEqual(shown.evaluate('location.href'), door.url.geturl())
            text = shown.evaluate('document.body.innerText')
            self.assertIn('small', text)
            wait_for(lambda: shown.evaluate('document.body.innerText') != text, 'a change')
            self.assertEqual(shown.console, [])
        finally:
            shown.close()

    def test_same_model_and_the_token_is_kept(self):
        plain = self.train(run_dir=self.run_dir + '-plain')
        self.assertEqual(self.train('--http=127.0.0.1:0')['model_digest'], plain['model_digest'])
        with open(os.path.join(self.run_dir, 'http.token')) as file:
            token = file.read()
        with socket.socket() as taken:
            taken.bind(('127.0.0.1', 0))
            taken.listen()
            address = '%s:%d' % taken.getsockname()
            refused = self.thermocline('train', '--resume', '--run-dir', self.run_dir,
                                       '--http=' + address)
            self.assertEqual(refused.returncode, 2)
            self.assertIn(address, refused.stderr)
            # An engine's restart goes on, and says so.
            other = self.start('--or-begin', '--restarted', '--http=' + address,
                               run_dir=self.make_folder('other'))
            code, _, err = self.finish(other)
            self.assertEqual(code, 0, err)
            self.assertIn('the job runs without its page', err)
        self.resume('--http=127.0.0.1:0', '--set=train.passes=2')
        with open(os.path.join(self.run_dir, 'http.token')) as file:
            self.assertEqual(file.read(), token)

    def make_folder(self, name):
        folder = '%s-%s' % (self.run_dir, name)
        os.mkdir(folder)
        return folder

    def test_beyond_loopback_it_needs_tls(self):
        launcher = self.start('--http=0.0.0.0:0')
        code, _, err = self.finish(launcher)
        self.assertEqual(code, 2)
        self.assertIn('cluster.tls.automatic=true', err)
        launcher = self.start_long('--http=0.0.0.0:0', '--set=cluster.tls.automatic=true')
        certificates = os.path.join(self.run_dir, 'certificates')

        def context_of(role):
            context = ssl.create_default_context(cafile=os.path.join(certificates, 'ca.pem'))
            context.check_hostname = False  # http.client asks for 127.0.0.1 by another name.
            if role is not None:
                context.load_cert_chain(*(os.path.join(certificates, role + end)
                                          for end in ('.pem', '.key')))
            return context

        def status_of(role, **headers):
            door = Door(self.run_dir, context_of(role))
            door.url = door.url._replace(netloc='localhost:%d' % door.url.port)
            return door.ask('/metrics', **headers)[0]
        token = Door(self.run_dir).token
        wait_for(lambda: status_of('reader') == 200, 'figures')
        self.assertEqual(status_of(None), 401)
        self.assertEqual(status_of(None, Authorization='Bearer ' + token), 200)
        self.assertEqual(status_of('reader'), 200)
        self.assertEqual(status_of('controller'), 200)
        self.assertEqual(status_of('worker'), 401)
        plain = Door(self.run_dir)
        with self.assertRaises((http.client.HTTPException, ConnectionError)):
            plain.ask('/metrics', Authorization='Bearer ' + token)
        self.stop(launcher)

    # One job has all of it, so that a real Prometheus sees it.
    def test_counters_never_fall(self):
        launcher, door = self.start_with_door(*KILLED)
        prometheus = None
        if shutil.which('prometheus'):
            prometheus = Prometheus(self, door, os.path.join(self.run_dir, 'http.token'))
        before = {}

        def look():
            """The values now; no counter is less than it was."""
            values, counters = door.metrics()
            fell = {name: (before[name], values.get(name)) for name in before
                    if values.get(name, -1) < before[name]}
            self.assertEqual(fell, {})
            before.update({name: values[name] for name in counters})
            return values

        def wait_until(condition, what):
            def holds():
                values = look()
                return values if condition(values) else None
            return wait_for(holds, what)

        def trains_on(values):
            samples = sum_of(values, 'thermocline_worker_samples_total')
            return wait_until(lambda now: all(
                sum_of(now, 'thermocline_up', role='worker', index=i) == 1 for i in (0, 1)) and sum_of(
                    now, 'thermocline_worker_samples_total') > samples + 1000, 'more samples')

        values = wait_until(lambda now: sum_of(now, 'thermocline_up') == 4 and
                            sum_of(now, 'thermocline_job_checkpoints_total'), 'all processes')
        self.assertGreater(sum_of(values, 'thermocline_step_seconds_count', index=0), 0)
        self.assertGreater(sum_of(values, 'thermocline_request_seconds_count', method='Push'), 0)
        self.check_with_promtool(door)
        # A server dies.
        os.kill(self.pid_of(launcher, 'server 1'), signal.SIGKILL)
        values = wait_until(lambda now: sum_of(now, 'thermocline_job_server_restarts_total') == 1 and
                            sum_of(now, 'thermocline_up', role='server') == 2, 'the next server')
        self.assertEqual(sum_of(values, 'thermocline_process_starts_total', role='server', index=1), 2)
        values = trains_on(values)
        # A worker dies, and the job goes back.
        os.kill(self.pid_of(launcher, 'worker 1'), signal.SIGKILL)
        values = wait_until(lambda now: sum_of(now, 'thermocline_job_rollbacks_total') == 1 and
                            sum_of(now, 'thermocline_up') == 4, 'the next generation')
        values = trains_on(values)
        self.kill_door_under_load(launcher, door)
        values = trains_on(look())
        self.stop_door(launcher)
        values = trains_on(look())
        if prometheus is not None:
            self.check_prometheus(prometheus)
        _, err = out_and_err = self.stop(launcher)
        notices = re.findall("the process that serves the job's page", ''.join(out_and_err))
        self.assertEqual(len(notices), 1, err)
        if prometheus is None:
            self.skipTest('there is no prometheus: all the rest was tested')

    def check_with_promtool(self, door):
        if not shutil.which('promtool'):
            return
        checked = subprocess.run(['promtool', 'check', 'metrics'], input=door.get('/metrics'),
                                 capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual((checked.returncode, checked.stdout + checked.stderr), (0, ''))

    def kill_door_under_load(self, launcher, door):
        ends = threading.Event()
        answers = []

        def ask():
            while not ends.is_set():
                try:
                    answers.append(len(door.get('/metrics')))
                except (OSError, http.client.HTTPException, AssertionError):
                    pass  # It was killed meanwhile, or has no figures yet.
        askers = [threading.Thread(target=ask) for _ in range(4)]
        for asker in askers:
            asker.start()
        try:
            for _ in range(2):
                wait_for(lambda: answers, 'answers')
                child = wait_for(lambda: self.child_of(launcher), 'the child')
                os.kill(child, signal.SIGKILL)
                wait_for(lambda: self.child_of(launcher) not in (None, child), 'the next child')
                answers.clear()
                wait_for(lambda: answers, 'answers of the next child')
        finally:
            ends.set()
            for asker in askers:
                asker.join()

    def stop_door(self, launcher):
        """The job makes steps while nothing takes what the door is told."""
        child = self.child_of(launcher)
        os.kill(child, signal.SIGSTOP)
        try:
            step = self.events('progress')[-1]['step']
            wait_for(lambda: self.events('progress')[-1]['step'] > step + 20, 'more steps')
        finally:
            os.kill(child, signal.SIGCONT)

    def check_prometheus(self, prometheus):
        wait_for(lambda: prometheus.query('thermocline_job_rollbacks_total') and prometheus.query(
            'max_over_time(up{scraped="thermocline"}[1m])'), 'scrapes')
        names = {labels['__name__'] for labels, _ in prometheus.query(
            '{__name__=~"thermocline_.+_(total|count|sum|bucket)"}')}
        self.assertGreater(len(names), 50)
        for name in names:
            fell = [each for each in prometheus.query('resets(%s[10m])' % name) if each[1] > 0]
            self.assertEqual(fell, [], name)
        with open(os.path.join(MONITORING, 'dashboard.json')) as file:
            dashboard = json.load(file)
        asked = [(panel['title'], target['expr']) for panel in dashboard['panels']
                 for target in panel.get('targets', [])]
        self.assertGreater(len(asked), 20)
        for title, expression in asked:
            expression = expression.replace('$job', '.*').replace('$__rate_interval', '1m')
            wait_for(lambda expression=expression: prometheus.query(expression),
                     '%s: %s' % (title, expression))

    def test_alert_rules(self):
        if not shutil.which('promtool'):
            self.skipTest('there is no promtool')
        checked = subprocess.run(['promtool', 'test', 'rules', 'alerts_test.yml'], cwd=MONITORING,
                                 capture_output=True, text=True, timeout=DEADLINE_S)
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)


if __name__ == '__main__':
    unittest.main()
