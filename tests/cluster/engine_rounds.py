"""Rounds of cluster_test.py about what Slurm does to a job: it takes hosts away, and starts the job again."""

from cluster import Job
from hosts import wait_for

# The certificates of submit, and not those of the other rounds.
OWN_TLS = ('--clear', 'cluster.tls')
# So that only a checkpoint at the end of a start can be there.
RARELY = (*OWN_TLS, '--set', 'checkpoint.every_steps=1000000')


def _resumes(job):
    """The steps of the checkpoints that later starts began with."""
    return [int(event['checkpoint'].split('-')[1]) if event['checkpoint'] else -1
            for event in job.events() if event['event'] == 'resume']


def _assert_kept(job, step):
    resumed = _resumes(job)
    assert resumed and resumed[0] >= step, (resumed, step, job.tail())


def script_host_killed(cluster, rng, name, engine):
    """The host of the batch script loses its power; another one puts the job back into the queue."""
    job = Job(cluster, name, engine, 3, 2, *OWN_TLS)
    job.await_step(rng.randrange(100, 500))
    victim = job.hosts_of_slurm()[0]
    victim.kill()
    try:
        job.finish()
    finally:
        cluster.boot(victim)
    assert len(_resumes(job)) == 1, job.story()


def preempted(cluster, rng, name, engine):
    """Another job takes the hosts: all processes get SIGTERM, and the job goes on later where it was."""
    job = Job(cluster, name, engine, len(cluster.nodes), 2, *RARELY)
    job.await_step(rng.randrange(50, 500))
    step = job.step()
    cluster.login.run('sbatch', '--partition=urgent', '--nodes=1', '--exclusive', '--output=/dev/null',
                      '--wrap', 'sleep 0.1')
    job.finish()
    _assert_kept(job, step)


def canceled(cluster, rng, name, engine):
    """scancel is SIGTERM to all processes: a last checkpoint is written, and the job is not started again."""
    job = Job(cluster, name, engine, 2, 2, *RARELY)
    job.await_step(rng.randrange(50, 500))
    step = job.step()
    cluster.login.run('scancel', job.id())
    assert job.await_end() == 1
    assert cluster.slurm.state(job.id()) == 'CANCELLED', cluster.slurm.state(job.id())
    job.resume()
    job.finish()
    _assert_kept(job, step)


def requeued_at_its_end(cluster, rng, name, engine):
    """A job that has ended is put back into the queue: it says how it ended, and trains nothing."""
    del rng
    job = Job(cluster, name, engine, 2, 1)
    job.finish()
    generations = job.generations()
    cluster.login.run('scontrol', 'requeue', job.id())
    wait_for(lambda: 'has been trained before' in job.tail(), 'the report; ' + job.tail(), 200, 0.5)
    wait_for(lambda: cluster.slurm.state(job.id()) == 'COMPLETED', 'its end', 60, 0.2)
    assert job.generations() == generations, job.story()


KINDS = [script_host_killed, preempted, canceled, requeued_at_its_end]
