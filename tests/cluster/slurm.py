"""Slurm over the hosts of hosts.py: Debian's munged, slurmctld and slurmd, with files of their own."""

import os
import shutil

from hosts import wait_for

_CONFIG = """
ClusterName=thermocline
SlurmctldHost=%(controller)s(%(address)s)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=/run/munge/munge.socket,cred_expire=5
StateSaveLocation=%(folder)s/state
SlurmdSpoolDir=%(folder)s/spool-%%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=%(folder)s/slurmctld.log
SlurmdLogFile=%(folder)s/slurmd-%%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,sched_min_interval=100000,bf_interval=2
ReturnToService=2
SlurmdTimeout=10
InactiveLimit=0
KillWait=30
MinJobAge=300
OverTimeLimit=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmdParameters=config_overrides
%(nodes)s
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=2 MaxTime=INFINITE State=UP
"""


def missing():
    """Why Slurm can't run on this machine; '': it can."""
    for name, package in (('munged', 'munge'), ('slurmctld', 'slurmctld'), ('slurmd', 'slurmd'),
                          ('sbatch', 'slurm-client')):
        if not shutil.which(name, path=os.environ.get('PATH', '') + ':/usr/sbin:/sbin'):
            return 'there is no %s; deploy/setup.sh --tests installs %s' % (name, package)
    return ''


class Slurm:
    """hosts[0] has slurmctld and is the login host; all of `nodes` have slurmd."""

    def __init__(self, hosts, nodes, folder, cpus=4, memory_mb=4000):
        self.hosts = hosts
        self.nodes = nodes
        self.folder = folder
        self.config = os.path.join(folder, 'slurm.conf')
        self.key = os.path.join(folder, 'munge.key')
        os.makedirs(os.path.join(folder, 'state'))
        with open(self.key, 'wb') as key:
            key.write(os.urandom(128))
        os.chmod(self.key, 0o400)
        with open(self.config, 'w') as config:
            config.write(_CONFIG % {
                'controller': hosts[0].name, 'address': hosts[0].address, 'folder': folder,
                'nodes': '\n'.join('NodeName=%s NodeAddr=%s CPUs=%d RealMemory=%d' % (
                    host.name, host.address, cpus, memory_mb) for host in nodes)})
        os.environ['SLURM_CONF'] = self.config
        for host in hosts:
            self.start_on(host)
        hosts[0].start('slurmctld', '-D', log=os.path.join(folder, 'slurmctld.out'))
        wait_for(lambda: self.sinfo().count('idle') == len(nodes),
                 'idle nodes; sinfo says ' + self.sinfo(), 60, 0.2)

    def start_on(self, host):
        """Also after a boot of the host."""
        log = os.path.join(self.folder, 'munged-%s.out' % host.name)
        host.start('munged', '--foreground', '--force', '--key-file', self.key,
                   '--socket', '/run/munge/munge.socket', '--log-file', '/run/munge/munged.log',
                   '--pid-file', '/run/munge/munged.pid', '--seed-file', '/run/munge/munged.seed',
                   log=log)
        wait_for(lambda: host.run('ls', '/run/munge').find('munge.socket') >= 0, 'munged; see ' + log)
        if host in self.nodes:
            os.makedirs(os.path.join(self.folder, 'spool-' + host.name), exist_ok=True)
            host.start('slurmd', '-D', log=os.path.join(self.folder, 'slurmd-%s.out' % host.name))

    def sinfo(self):
        """A line for each node: its name and state."""
        return self.hosts[0].run('sinfo', '-h', '-N', '-p', 'main', '-o', '%n %t', check=False)

    def state(self, job_id):
        """PENDING, RUNNING, ...; '' for a job that is long gone."""
        text = self.hosts[0].run('scontrol', 'show', 'job', '-o', str(job_id), check=False)
        fields = dict(part.split('=', 1) for part in text.split() if '=' in part)
        return fields.get('JobState', '')
