"""sshd on the hosts of hosts.py, and a program `ssh` that reaches them without a password."""

import os
import shutil
import stat

from hosts import run, wait_for

_SSHD = """
HostKey %(folder)s/host_key
AuthorizedKeysFile %(folder)s/key.pub
PermitRootLogin yes
StrictModes no
UsePAM no
PidFile /run/sshd.pid
"""
_SSH = """
IdentityFile %(folder)s/key
StrictHostKeyChecking no
UserKnownHostsFile /dev/null
LogLevel ERROR
"""


def missing():
    """Why sshd can't run on this machine; '': it can."""
    if not os.access('/usr/sbin/sshd', os.X_OK):
        return 'there is no sshd; deploy/setup.sh --tests installs openssh-server'
    return ''


class Ssh:
    def __init__(self, hosts, folder):
        self.folder = folder
        os.makedirs(os.path.join(folder, 'bin'))
        for key in 'host_key', 'key':
            run('ssh-keygen', '-q', '-t', 'ed25519', '-N', '', '-f', os.path.join(folder, key))
        for name, text in ('sshd_config', _SSHD), ('ssh_config', _SSH):
            with open(os.path.join(folder, name), 'w') as file:
                file.write(text % {'folder': folder})
        client = os.path.join(folder, 'bin/ssh')
        with open(client, 'w') as script:
            script.write('#!/bin/sh\nexec %s -F %s/ssh_config "$@"\n' % (shutil.which('ssh'), folder))
        os.chmod(client, os.stat(client).st_mode | stat.S_IXUSR)
        os.environ['PATH'] = os.path.join(folder, 'bin') + ':' + os.environ['PATH']
        for host in hosts:
            self.start_on(host)
        for host in hosts:
            wait_for(lambda: host.run('ssh', host.name, 'hostname', check=False) == host.name + '\n',
                     'sshd of ' + host.name)

    def start_on(self, host):
        """Also after a boot of the host."""
        host.start('/usr/sbin/sshd', '-D', '-e', '-f', os.path.join(self.folder, 'sshd_config'),
                   log=os.path.join(self.folder, 'sshd-%s.log' % host.name))
