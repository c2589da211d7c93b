"""The package of deploy/package.sh trains a model where there is nothing: no libraries, no C library, no shell but
busybox's. With its wheel, the first page of docs/pytorch.md does what it says.

    package_test.py [PROGRAMS]     PROGRAMS: the folder that deploy/build.sh fills (build)

Ends with the line "N passed, N failed"; where there can be no such folder, it says why.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import hosts

BUSYBOX = '/bin/busybox'


def make_root(root, archive):
    for folder in 'bin', 'dev', 'proc', 'tmp', 'opt':
        os.makedirs(os.path.join(root, folder))
    shutil.copy(BUSYBOX, os.path.join(root, 'bin/busybox'))
    for name in 'sh', 'readlink', 'ls', 'cat', 'grep':
        os.symlink('busybox', os.path.join(root, 'bin', name))
    for device in 'null', 'zero', 'urandom':
        path = os.path.join(root, 'dev', device)
        open(path, 'w').close()
        hosts.run('mount', '--bind', '/dev/' + device, path)
    os.symlink('/proc/self/fd', os.path.join(root, 'dev/fd'))
    hosts.run('mount', '-t', 'proc', 'proc', os.path.join(root, 'proc'))
    hosts.run('tar', '-xzf', archive, '-C', os.path.join(root, 'opt'), '--strip-components=1')


def train(root):
    """The digest of quickstart's model of a small log; rows are scored with it, too."""
    here = '/opt/bin/thermocline'
    for command in ('%s generate /tmp/clicklog --rows 20000 --test-rows 2000 --shrink 100 --threads 1' % here,
                    '%s train /opt/jobs/quickstart.textproto --data /tmp/clicklog --run-dir /tmp/run' % here,
                    '%s predict --checkpoint /tmp/run --data /tmp/clicklog --out /tmp/scores.csv' % here):
        done = subprocess.run(['/usr/sbin/chroot', root, '/bin/sh', '-c', command], capture_output=True, text=True,
                              env={'PATH': '/bin'}, timeout=300)
        if done.returncode != 0:
            raise AssertionError('%s\nexit code %d\n%s%s' % (command, done.returncode, done.stdout, done.stderr))
    return digest(root + '/tmp/run')


def check_name(root):
    """`top` shows the program, and not the loader of the C library."""
    agent = subprocess.Popen(['/usr/sbin/chroot', root, '/opt/bin/thermocline', 'node', '--controller=127.0.0.1:1',
                              '--dir=/tmp/agent'], env={'PATH': '/bin'}, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)

    def name():
        with open('/proc/%d/comm' % agent.pid) as comm:
            return comm.read().strip()
    try:
        hosts.wait_for(lambda: name() not in ('chroot', 'python3', 'sh'), 'the program behind its wrapper')
        hosts.wait_for(lambda: name() == 'thermocline', 'the name of the program; it is ' + name(), 10)
    finally:
        agent.kill()
        agent.wait()


def follow_first_page(source, package, wheels):
    """Carries out the first page of docs/pytorch.md in a virtual environment that has PyTorch and nothing of ours."""
    with open(source + '/docs/pytorch.md') as file:
        page = file.read().split('\n## ')[0]
    commands, outputs = re.findall(r'^```\n(.*?)^```$', page, re.DOTALL | re.MULTILINE)[0], []
    folder = '/mnt/first'
    shutil.copytree(wheels, folder, ignore=lambda _, names: [name for name in names if not name.endswith('.whl')])
    for name, text in re.findall(r'^`(first[.]\w+)`:\n\n```\w*\n(.*?)^```$', page, re.DOTALL | re.MULTILINE):
        with open(os.path.join(folder, name), 'w') as file:
            file.write(text)
    hosts.run('/usr/bin/python3', '-m', 'venv', '--system-site-packages', folder + '/venv')
    environment = {'PATH': '%s/venv/bin:%s/bin:/usr/bin:/bin' % (folder, package), 'HOME': folder}
    for line in commands.splitlines():
        command = shlex.split(line, comments=True)
        if command[:2] == ['thermocline', 'train']:
            command += ['--set', 'train.max_steps=40']  # The page's job has some hundreds.
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder, timeout=300)
        if done.returncode != 0:
            raise AssertionError('%s\nexit code %d\n%s%s' % (line, done.returncode, done.stdout, done.stderr))
        outputs.append(done.stdout)
    if not re.search(r'^AUC 0\.[67]\d+ .* on 10,000 held-out samples$', outputs[-1], re.MULTILINE):
        raise AssertionError('%s\n%s' % (line, outputs[-1]))


def digest(run_dir):
    with open(run_dir + '/summary.json') as summary:
        return json.load(summary)['model_digest']


def train_here(programs, source, data):
    """The same without the package."""
    hosts.run(programs + '/bin/thermocline', 'train', source + '/deploy/jobs/quickstart.textproto', '--data', data,
              '--run-dir', '/mnt/run')
    return digest('/mnt/run')


def main():
    programs = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else 'build')
    why = hosts.missing()
    if not os.access(BUSYBOX, os.X_OK) or 'not a dynamic' not in subprocess.run(
            ['ldd', BUSYBOX], capture_output=True, text=True).stderr:
        why = why or 'there is no static busybox; deploy/setup.sh --tests installs busybox-static'
    if why:
        print('skipped: %s\n0 passed, 0 failed' % why)
        return 0
    hosts.enter()
    hosts.run('ip', 'link', 'set', 'lo', 'up')
    hosts.run('mount', '-t', 'tmpfs', '-o', 'size=4g,mode=755', 'tmpfs', '/mnt')
    source = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    made = subprocess.run([source + '/deploy/package.sh', '/mnt/package.tar.gz'], text=True, capture_output=True,
                          env={**os.environ, 'THERMOCLINE_PACKAGE_BUILT': programs})
    if made.returncode != 0:
        print('%s%s\n0 passed, 1 failed' % (made.stdout, made.stderr))
        return 1
    print(made.stdout.strip())
    make_root('/mnt/root', '/mnt/package.tar.gz')
    try:
        found, expected = train('/mnt/root'), train_here(programs, source, '/mnt/root/tmp/clicklog')
        if found != expected:
            raise AssertionError('the model has digest %s, and without the package %s' % (found, expected))
        check_name('/mnt/root')
        if subprocess.run(['/usr/bin/python3', '-c', 'import torch'], stderr=subprocess.DEVNULL).returncode != 0:
            print('skipped: the wheel: no PyTorch; deploy/setup.sh --tests installs it\n1 passed, 0 failed')
            return 0
        follow_first_page(source, '/mnt/root/opt', '/mnt')
    except (AssertionError, RuntimeError) as error:
        print('%s\n0 passed, 1 failed' % error)
        return 1
    print('2 passed, 0 failed')
    return 0


if __name__ == '__main__':
    sys.exit(main())
