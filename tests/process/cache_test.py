"""A job whose worker keeps rows beside its compute: the same model, and what a user sees of it."""

import json
import os
import unittest

from harness import ProcessTest, wait_for

# Hardly more than the rows of one batch.
CACHED = ['--set=cache.budget=600KiB', '--set=cache.window_steps=6']


class CacheTest(ProcessTest):

    def worker(self):
        with open(os.path.join(self.run_dir, 'worker-0.json')) as file:
            return json.load(file)

    def test_same_digest_on_both_tiers(self):
        uncached = self.train('--servers=2', run_dir=self.run_dir + '-uncached')
        for number, storage in enumerate(('memory{}', "rocksdb{memory:'64KiB'}")):
            run_dir = '%s-%d' % (self.run_dir, number)
            cached = self.train('--servers=2', '--set=default_table.storage={%s}' % storage, *CACHED,
                                '--set=checkpoint.every_steps=7', run_dir=run_dir)
            self.assertEqual(cached['model_digest'], uncached['model_digest'])
            self.assertEqual(cached['auc'], uncached['auc'])

    def test_what_is_told_adds_up(self):
        self.train(*CACHED)
        worker = self.worker()
        cache = worker['cache']
        for name in ('hits', 'loaded', 'bypassed', 'evicted'):
            self.assertGreater(cache[name], 0, name)
        self.assertEqual(cache['loaded'] - cache['evicted'], cache['rows_held'])
        self.assertLessEqual(cache['rows_held'], cache['capacity_rows'])
        self.assertLessEqual(cache['rejected_no_room'], cache['bypassed'])
        self.assertEqual((cache['window_steps'], cache['prefetch_steps']), (6, 2))
        lines = self.events('progress')
        # Every step is a line here; the last push may still wait for the one before when its line is
        # written, and evaluation pulls too.
        for name in ('bytes_pulled', 'bytes_pushed'):
            told = sum(line[name + '_per_step'] for line in lines)
            self.assertGreater(told, 0)
            self.assertLessEqual(told, worker[name] + 1)
        for line in lines:
            rates = [line['cache'][name] for name in ('hit_rate', 'loaded_rate', 'bypass_rate')]
            # The last lines may have none: their steps were planned ahead.
            if rates != [None] * 3:
                self.assertTrue(all(0 <= rate <= 1 for rate in rates), line)
                self.assertEqual(round(sum(rates), 6), 1, line)
            self.assertTrue(0 <= line['wait_share'] <= 1, line)
        self.assertGreater(lines[0]['cache']['loaded_rate'], 0)
        self.assertIn('plan cache (ahead)', lines[-1]['stages_us_per_step'])

    def test_stats_have_a_table_of_caches(self):
        launcher = self.start_long(*CACHED)

        def table():
            stats = self.thermocline('stats', '--run-dir', self.run_dir)
            self.assertEqual(stats.returncode, 0, stats.stderr)
            return stats.stdout if 'cache of worker' in stats.stdout else None
        out = wait_for(table, 'a table of caches')
        for word in ('budget', 'rows held', 'hits', 'bypassed', '600.0 KiB', 'CPU'):
            self.assertIn(word, out)
        launcher.terminate()
        self.finish(launcher)

    def test_a_resumed_job_may_change_its_cache_and_go_without(self):
        undisturbed = self.train('--set=train.passes=4', run_dir=self.run_dir + '-uncached')
        self.train(*CACHED, '--set=checkpoint.every_steps=7')
        # The prefetch of 2 steps is a default: it yields to the smaller window.
        self.resume('--set=cache.window_steps=1', '--set=train.passes=2')
        cache = self.worker()['cache']
        self.assertEqual((cache['window_steps'], cache['prefetch_steps']), (1, 0))
        self.resume('--clear', 'cache', '--set=train.passes=3')
        self.assertNotIn('cache', self.worker())
        summary = self.resume('--set=train.passes=4')
        self.assertNotIn('cache', self.worker())
        self.assertEqual(summary['model_digest'], undisturbed['model_digest'])
        # There is nothing left to train, and so no loss of it.
        self.resume()
        last = self.events('progress')[-1]
        self.assertEqual((last['step'], last['fraction']), (summary['steps'], 1))
        for figure in ('loss', 'auc', 'samples_per_s', 'cache'):
            self.assertNotIn(figure, last)

    def test_a_prefetch_that_was_given_is_kept_and_refused(self):
        self.train(*CACHED, '--set=cache.prefetch_steps=2', '--set=checkpoint.every_steps=7')
        flags = ('--set=cache.window_steps=2', '--set=train.passes=2')
        refused = self.thermocline('train', '--resume', '--run-dir', self.run_dir, *flags)
        self.assertEqual(refused.returncode, 2)
        self.assertRegex(refused.stderr, 'job.textproto:[0-9]+: cache.prefetch_steps is 2; it must be '
                                         'less than cache.window_steps, which is 2')
        self.resume('--clear=cache.prefetch_steps', *flags)
        self.assertEqual(self.worker()['cache']['prefetch_steps'], 1)

    def test_a_budget_below_one_batch_is_refused_before_the_start(self):
        code, _, err = self.finish(self.start('--set=cache.budget=64KiB'))
        self.assertEqual(code, 2)
        self.assertIn('cache.budget is 65536 bytes; at least 426048 are needed', err)

    def test_several_workers_in_sync_mode_share_one_cache(self):
        uncached = self.train('--workers=3', run_dir=self.run_dir + '-uncached')
        cached = self.train('--workers=3', *CACHED, '--set=checkpoint.every_steps=7')
        self.assertEqual(cached['model_digest'], uncached['model_digest'])
        self.assertEqual(cached['auc'], uncached['auc'])
        sent = 0
        for rank in range(3):
            with open(os.path.join(self.run_dir, 'worker-%d.json' % rank)) as file:
                worker = json.load(file)
            self.assertGreater(worker['cache']['hits'], 0)
            self.assertGreater(worker['bytes_to_device'], 0)
            sent += sum(phase['bytes_sent'] for phase in worker['exchange']['phases'])
        # The stats of a job that is over come from these files.
        stats = self.thermocline('stats', '--run-dir', self.run_dir, '--json')
        self.assertEqual(stats.returncode, 0, stats.stderr)
        workers = [worker['stats'] for worker in json.loads(stats.stdout)['workers']]
        self.assertEqual([int(worker['cache']['budget_bytes']) for worker in workers], 3 * [600 << 10])
        phases = [phase for worker in workers for phase in worker['exchange']['phases']]
        self.assertEqual(sum(int(phase['bytes_sent']) for phase in phases), sent)
        self.assertEqual(set(phase['name'] for phase in phases) & {'rows', 'gradients'},
                         {'rows', 'gradients'})
        self.assertTrue(all(worker['uptime_s'] > 0 for worker in workers))
        # Where nothing is left to train, no rank leaves before the others know where its data end.
        self.assertEqual(self.resume()['model_digest'], cached['model_digest'])

    def test_rows_on_the_device_stay_or_end_the_job(self):
        uncached = self.train(run_dir=self.run_dir + '-uncached')
        device = '--set=default_table.placement=DEVICE'
        kept = self.train(device, '--set=cache.budget=64MiB', run_dir=self.run_dir + '-kept')
        self.assertEqual(kept['model_digest'], uncached['model_digest'])
        code, _, err = self.finish(self.start(device, '--set=cache.budget=600KiB',
                                              '--set=checkpoint.every_steps=3'))
        self.assertEqual(code, 1)
        self.assertRegex(err, "table '[^']+' has placement DEVICE, and its rows.* take [0-9]+ bytes so "
                              'far; cache.budget is 614400 bytes, of which [0-9]+ are for them')
        self.assertNotIn('going back', err)

    def test_a_checkpoint_goes_on_with_another_number_of_workers(self):
        digests = []
        for number, cache in enumerate(([], CACHED)):
            self.run_dir = '%s-%d' % (self.run_dir, number)
            self.train('--workers=2', '--set=train.max_steps=9', '--set=checkpoint.every_steps=7',
                       *cache, run_dir=self.run_dir)
            summary = self.resume('--workers=3', '--clear=train.max_steps')
            self.assertEqual(summary['resumed_from_step'], 9)
            digests.append(summary['model_digest'])
        self.assertEqual(digests[1], digests[0])


if __name__ == '__main__':
    unittest.main()
