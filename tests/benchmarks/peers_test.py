#!/usr/bin/python3
"""The peers' scripts: the log that they read, their AUC, and a tiny run of the plain PyTorch one, where
there is a PyTorch. Asserts nothing about speed."""
import os
import re
import subprocess
import sys
import tempfile
import unittest

PEERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers")
sys.path.insert(0, PEERS)
try:
    import click_log
    import numpy as np
except ModuleNotFoundError:
    click_log = None
try:
    import torch
except ModuleNotFoundError:
    torch = None


def write_log(path, rows):
    """Rows of Criteo's text form: (label, first number, first category); the other columns are empty."""
    with open(path, "w") as file:
        for label, number, category in rows:
            file.write("\t".join([str(label), number] + [""] * 12 + [category] + [""] * 25) + "\n")


@unittest.skipIf(click_log is None, "no numpy")
class PeersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def convert(self, rows):
        text = os.path.join(self.folder, "log.tsv")
        write_log(text, rows)
        click_log.convert(text, self.folder)
        return click_log.ClickLog(self.folder)

    def test_auc_is_the_share_of_ordered_pairs(self):
        labels = np.array([1, 0, 1, 0, 0, 1, 1])
        scores = np.array([0.5, 0.5, 0.7, 0.2, 0.9, -1.0, 0.5])
        pairs = [(a > b) + (a == b) / 2 for a in scores[labels == 1] for b in scores[labels == 0]]
        self.assertAlmostEqual(click_log.auc(labels, scores), np.mean(pairs))

    def test_converts_text(self):
        categories = ["aa", "", "bb", "aa", "cc", "bb", "", "cc", "aa"]
        rows = [(i % 2, str(i - 1) if i else "", c) for i, c in enumerate(categories)]
        log = self.convert(rows + [(1, "7", "new")])
        dense, sparse, labels = log.split("train")
        np.testing.assert_array_equal(labels, [0, 1, 0, 1, 0, 1, 0, 1, 0])
        np.testing.assert_array_equal(sparse[:, 0], [1, 0, 2, 1, 3, 2, 0, 3, 1])
        self.assertTrue((sparse[:, 1:] == 0).all())
        np.testing.assert_allclose(dense[:, 0], np.log1p([0, 0, 1, 2, 3, 4, 5, 6, 7]), rtol=1e-6)
        # The last tenth is for testing; a value that training never met has the last id.
        dense, sparse, labels = log.split("test")
        self.assertEqual((labels.tolist(), sparse[0, 0]), ([1], 4))
        self.assertEqual(log.cardinalities, [5] + [2] * 25)
        self.assertEqual((sparse.dtype, dense.dtype), (np.int32, np.float32))

    def test_batches_are_whole_in_training_only(self):
        log = self.convert([(i % 2, str(i), "a") for i in range(100)])
        sizes = lambda batches: [len(labels) for _, _, labels in batches]
        self.assertEqual(sizes(log.training_batches(40, 0)), [40, 40])
        self.assertEqual(sizes(log.training_batches(40, 1)), [40])
        self.assertEqual(sizes(log.batches("test", 4)), [4, 4, 2])

    @unittest.skipIf(torch is None, "no PyTorch")
    def test_plain_pytorch_trains(self):
        # The category determines the click: a pass learns it.
        self.convert([(i % 2, "1", "ab" if i % 2 else "cd") for i in range(4000)])
        done = subprocess.run(
            [sys.executable, os.path.join(PEERS, "torch_dlrm.py"), self.folder, "--batch", "32", "--bottom", "16",
             "--top", "16", "--dim", "4", "--lr", "0.02", "--threads", "1"], stdout=subprocess.PIPE, text=True, check=True)
        found = re.fullmatch(r"torch=(\S+) samples_per_s=([0-9.]+) auc=([0-9.]+) logloss=([0-9.]+)\n", done.stdout)
        self.assertTrue(found, done.stdout)
        self.assertEqual(float(found[3]), 1)
        self.assertLess(float(found[4]), 0.1)


if __name__ == "__main__":
    unittest.main()
