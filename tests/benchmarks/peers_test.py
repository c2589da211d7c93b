#!/usr/bin/python3
"""The peers' scripts: the log that they read, their AUC, and a tiny run of the plain PyTorch one, where
there is a PyTorch; and the tables of comparisons with them. Asserts nothing about speed."""
import collections
import contextlib
import io
import os
import re
import sys
import tempfile
import unittest
from unittest import mock

PEERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "peers")
JOBS = os.path.join(PEERS, "..", "..", "..", "deploy", "jobs")
DLRM = ["--batch", "32", "--dim", "4", "--lr", "0.02"]
sys.path.insert(0, PEERS)
import compare_models  # noqa: E402
import compare_peers  # noqa: E402
import job_text  # noqa: E402  These need no package.
import taobao_histories  # noqa: E402

try:
    import click_log
    import numpy as np
    import real_logs
except ModuleNotFoundError:
    click_log = None
try:
    import torch
    import onednn_products
    import torch_dlrm
    import torch_models
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

    def test_only_the_last_batch_of_a_pass_is_short(self):
        log = self.convert([(i % 2, str(i), "a") for i in range(100)])
        sizes = lambda batches: [len(labels) for _, _, labels in batches]
        self.assertEqual(sizes(log.training_batches(40, 0)), [40, 40, 10])
        self.assertEqual(sizes(log.training_batches(40, 9)), [40, 40])
        self.assertEqual(sizes(log.training_batches(40, 1)), [40])
        self.assertEqual(sizes(log.batches("test", 4)), [4, 4, 2])

    def write_taobao(self, rows):
        """The path of a log of (user, item, behaviour)."""
        text = os.path.join(self.folder, "log.csv")
        with open(text, "w") as file:
            file.writelines(f"{user},{item},7,{behaviour},1511658000\n" for user, item, behaviour in rows)
        return text

    def test_keys_are_those_of_the_documented_rules(self):
        self.assertEqual(real_logs.string_key("85f751fd"), 0xdd945e02dcc5fabf)  # docs/formats.md
        self.assertEqual(real_logs.integer_key("-1"), real_logs.MISSING)
        self.assertEqual(real_logs.hex_key("fF"), 255)
        self.assertEqual([key("") for key in (real_logs.hex_key, real_logs.integer_key, real_logs.string_key)],
                         [real_logs.MISSING] * 3)
        real_logs.convert("taobao", self.write_taobao([(i % 3, i, ["pv", "buy"][i % 2]) for i in range(20)]),
                          self.folder)
        log = click_log.ClickLog(self.folder)
        with np.load(os.path.join(self.folder, "keys.npz")) as keys:
            ids = log.split("train")[1]
            np.testing.assert_array_equal(keys["arr_0"][ids[:, 0]], [i % 3 for i in range(18)])
            self.assertEqual(int(keys["arr_3"][ids[4, 3]]), real_logs.cross_key([1, 7]))
        dense, sparse, labels = log.split("test")
        self.assertEqual((log.cardinalities, dense.shape), ([3, 20, 1, 3], (2, 0)))
        # Keys that only test rows have are rows of their own.
        self.assertEqual((sparse[:, 1].tolist(), labels.tolist()), ([18, 19], [0, 1]))

    @unittest.skipIf(torch is None, "no PyTorch")
    def test_plain_pytorch_trains_without_numbers(self):
        real_logs.convert("taobao", self.write_taobao([(i % 2, i % 2, ["pv", "cart"][i % 2]) for i in range(4000)]),
                          self.folder)
        self.assert_learned(torch_dlrm, [*DLRM, "--top", "16"])

    @unittest.skipIf(torch is None, "no PyTorch")
    def test_plain_pytorch_trains(self):
        # The category determines the click: a pass learns it.
        self.convert([(i % 2, "1", "ab" if i % 2 else "cd") for i in range(4000)])
        for precision in ("fp32", "bf16"):
            self.assert_learned(torch_dlrm, [*DLRM, "--bottom", "16", "--top", "16", "--precision", precision])

    @unittest.skipIf(torch is None or not hasattr(torch.ops.mkldnn, "_linear_pointwise"), "no PyTorch with oneDNN's products")
    def test_products_of_a_step_are_counted(self):
        self.convert([(i % 2, "1", "ab") for i in range(40)])
        printed = self.printed_by(onednn_products, ["--batch", "8", "--dim", "4", "--bottom", "16", "--top", "32"])
        # 13-16-4, and 355-32-1 over the pairs of 27 vectors: each weight three times, but for the numbers' gradient.
        mflop = (6 * (13 * 16 + 16 * 4 + 355 * 32 + 32) - 2 * 13 * 16) * 1e-6
        found = re.fullmatch(r"mflop_per_sample=(\S+) fp32=[0-9.]+ bf16=[0-9.]+ torch=\S+\n", printed)
        self.assertTrue(found, printed)
        self.assertAlmostEqual(float(found[1]), mflop, places=3)

    @unittest.skipIf(torch is None, "no PyTorch")
    def test_presets_train(self):
        self.convert([(i % 2, "1", "ab" if i % 2 else "cd") for i in range(2000)])
        job = os.path.join(self.folder, "job.textproto")
        with open(job, "w") as file:
            file.write("default_table { dim: 4 } train { batch_size: 32 learning_rate { base: 0.02 } }")
        for model in ("dlrm { bottom: 16 top: 16 }", "wide_deep { deep: [16, 8] dropout: 0.1 }", "deepfm { deep: 16 }",
                      "dcnv2 { cross_layers: 2 cross_rank: 3 deep: 8 }",
                      "dcnv2 { cross_layers: 1 deep: 8 stacked: true }",
                      "finalmlp { first: 8 second: [16, 12] heads: 4 gate: 8 }"):
            for tables in ("each", "one") if model.startswith("deepfm") else ("one",):
                with self.subTest(model, tables=tables):
                    self.assert_learned(torch_models, ["--job", job, "--set", model, "--tables", tables])

    def write_movielens(self, rows):
        """Converts a log of (item, the items before it, like), whose other columns say nothing."""
        text = os.path.join(self.folder, "log.csv")
        with open(text, "w") as file:
            file.write("time,user,item,age,gender,occupation,zip,year,genres,hist_item,hist_year,like,top\n")
            for item, history, like in rows:
                lists = "|".join(map(str, history)), "|".join("x" for _ in history)
                file.write(",".join(["1", "7", str(item), "30", "F", "none", "", "x", "a|b", *lists, str(like),
                                     str(1 - like)]) + "\n")
        real_logs.convert("movielens", text, self.folder)
        return click_log.ClickLog(self.folder)

    def test_lists_stand_at_the_right_of_their_columns(self):
        log = self.write_movielens([(9, [], 1), (8, [9], 0), (7, [9, 8, 7, 5], 1), *[(9, [7, 8], 0)] * 8])
        self.assertEqual(log.cardinalities, [1, 4, 1, 1, 1, 1, 2])
        _, sparse, labels = log.split("train")
        np.testing.assert_array_equal(labels[:3], [[1, 0], [0, 1], [1, 0]])
        np.testing.assert_array_equal(sparse[:3, 1], [3, 2, 1])  # The item's ids are those of hist_item.
        np.testing.assert_array_equal(sparse[:4, 8:12], [[-1] * 4, [-1, -1, -1, 3], [3, 2, 1, 0], [-1, -1, 1, 2]])
        with np.load(os.path.join(self.folder, "keys.npz")) as keys:
            self.assertEqual(keys["arr_1"].tolist(), [5, 7, 8, 9])
            self.assertEqual(int(keys["arr_4"][0]), real_logs.MISSING)  # An empty zip has a key of its own.

    @unittest.skipIf(torch is None, "no PyTorch")
    def test_models_with_lists_train(self):
        self.write_movielens([(i % 2, [2 + j % 3 for j in range(i % 5)], i % 2) for i in range(2000)])
        for model in ("dcnv2", "din", "bst", "tbsm", "mmoe", "ple"):
            job = ["--job", os.path.join(JOBS, f"movielens_{model}.textproto"), "--set", "train { batch_size: 32 }"]
            for tables in ("each", "one") if model == "din" else ("one",):
                with self.subTest(model, tables=tables):
                    self.assert_learned(torch_models, [*job, "--tables", tables], 1 + (model in ("mmoe", "ple")))

    @unittest.skipIf(torch is None, "no PyTorch")
    def test_padding_changes_no_score(self):
        log = self.write_movielens([(i % 2, [2 + j % 3 for j in range(i % 5)], i % 2) for i in range(30)])
        sparse = torch.from_numpy(log.split("train")[1].astype(np.int64))
        dense = torch.from_numpy(np.array(log.split("train")[0]))
        for name in ("din", "bst", "tbsm"):
            with open(os.path.join(JOBS, f"movielens_{name}.textproto")) as file:
                job = job_text.parse(file.read())
            tables = torch_models.Lists(log, job, 16, 0.5, False, True)
            model = torch_models.MODELS[name](job[name], 1, len(tables.pooled), 16, tables.history).eval()
            alone = torch.cat([model(dense[i:i + 1], *tables(sparse[i:i + 1])) for i in range(len(dense))])
            torch.testing.assert_close(model(dense, *tables(sparse)), alone, msg=name)
            self.assertGreater(float(alone.std()), 1e-4, name)

    def test_a_row_of_taobao_asks_for_the_next_item(self):
        events = [(1, "u", "i1", "c1"), (2, "v", "i2", "c2"), (3, "u", "i3", "c3"), (4, "u", "i1", "c1"),
                  (5, "u", "i2", "c2"), (6, "v", "i4", "c4"), (7, "v", "i5", "c5")]
        rows = list(taobao_histories.labelled_rows(events, 2, 2, 4, 7))
        self.assertEqual([row for row in rows if row[-1] == 1],
                         [(3, "u", "i3", "c3", "i1", "c1", 1), (4, "u", "i1", "c1", "i1|i3", "c1|c3", 1),
                          (5, "u", "i2", "c2", "i3|i1", "c3|c1", 1), (6, "v", "i4", "c4", "i2", "c2", 1),
                          (7, "v", "i5", "c5", "i2|i4", "c2|c4", 1)])
        # The other items are those of the block of four, at most once in each of the two draws; the second block has one.
        others = [row for row in rows if row[-1] == 0]
        asked = {row[:2]: row[2:] for row in rows if row[-1] == 1}
        self.assertGreater(len(others), 2)
        for time, user, item, category, *lists, _ in others:
            self.assertLess(time, 7)
            self.assertEqual(lists, list(asked[time, user][2:4]))
            self.assertNotEqual(item, asked[time, user][0])
            self.assertIn((item, category), [event[2:] for event in events[2:6]])
        self.assertLessEqual(max(collections.Counter(row[2] for row in others).values()), 2)
        self.assertEqual(rows, list(taobao_histories.labelled_rows(events, 2, 2, 4, 7)))

    @unittest.skipIf(torch is None, "no PyTorch")
    def test_what_it_cannot_train_is_named(self):
        self.convert([(i % 2, "1", "ab") for i in range(40)])
        job = os.path.join(self.folder, "job.textproto")
        with open(job, "w") as file:
            file.write("default_table { dim: 4 optimizer { adagrad { epsilon: 1 } } } deepfm { deep: 8 }"
                       "train { batch_size: 8 learning_rate { base: 0.02 } }")
        with self.assertRaisesRegex(ValueError, "without epsilon of adagrad"):
            self.assert_learned(torch_models, ["--job", job])

    def test_job_files_become_dictionaries_and_text_again(self):
        text = """# A comment, { and all.
            name: "it's" data { path: "a b" format: DLRM_NPY }  # dlrm {
            feature { column: ["C1", "C2"] } feature { column: "C3" buckets: -3 }
            dlrm { top: [512, 256] top: 8 bottom: [] } train { base: 1e-2 keep: false }"""
        job = job_text.parse(text)
        self.assertEqual(job, {"name": "it's", "data": {"path": "a b", "format": "DLRM_NPY"},
                               "feature": [{"column": ["C1", "C2"]}, {"column": "C3", "buckets": -3}],
                               "dlrm": {"top": [512, 256, 8], "bottom": []}, "train": {"base": 0.01, "keep": "false"}})
        del job["dlrm"]["bottom"]
        self.assertEqual(job_text.parse(job_text.to_text(job)), job)
        self.assertIn("format: DLRM_NPY\n", job_text.to_text(job))
        for name in os.listdir(JOBS):
            with open(os.path.join(JOBS, name)) as file:
                job = job_text.parse(file.read())
            self.assertEqual(job["name"], name[:-len(".textproto")])
            text = job_text.to_text(job)
            self.assertEqual(job_text.to_text(job_text.parse(text)), text)

    def printed_by(self, program, arguments):
        printed = io.StringIO()
        command = [program.__name__, self.folder, "--threads", "1", *arguments]
        with mock.patch.object(sys, "argv", command), contextlib.redirect_stdout(printed):
            program.main()
        return printed.getvalue()

    def assert_learned(self, program, arguments, tasks=1):
        printed = self.printed_by(program, arguments)
        found = re.fullmatch(r"torch=\S+ samples_per_s=[0-9.]+((?: auc=[0-9.]+ logloss=[0-9.]+)+)\n", printed)
        self.assertTrue(found, printed)
        results = re.findall(r"auc=([0-9.]+) logloss=([0-9.]+)", found[1])
        self.assertEqual([float(auc) for auc, _ in results], [1] * tasks)
        for _, logloss in results:
            self.assertLess(float(logloss), 0.1)


def rows_of(print_table, *arguments):
    """{first cell: the others} of the table that is printed."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        print_table(*arguments)
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in printed.getvalue().splitlines()]
    return {first: others for first, *others in (row for row in cells if row)}


class TablesTest(unittest.TestCase):
    def test_ratios_stand_at_the_faster_precision(self):
        def contestant(program, precision, rates, **options):
            runs = [{"samples_per_s": rate, "auc": 0.5, "logloss": 1, "versions": "v"} for rate in rates]
            return compare_peers.Contestant(program, precision, None, runs=runs, **options)
        rows = rows_of(compare_peers.print_table, [
            contestant("Thermocline", "fp32", [200, 400], is_ours=True),
            contestant("Thermocline", "bf16", [300, 600], is_ours=True),
            contestant("script, no model", "fp32", [900, 900], has_model=False),
            contestant("plain", "fp32", [100, 100]), contestant("plain", "bf16", [100, 200]),
            contestant("expert", "fp32", [100, 100]), contestant("expert", "bf16", [90, 90])], {"fp32": 1000})
        # samples/s, the share of the limit, the ratio of each of ours, ...
        self.assertEqual(rows["Thermocline"][:4], ["300 [200 400]", "0.30", "", ""])
        self.assertEqual(rows["Thermocline, bf16"][:4], ["450 [300 600]", "", "", ""])
        self.assertEqual(rows["script, no model"][1], "")
        self.assertEqual(rows["plain"][1:4], ["0.10", "", ""])
        self.assertEqual(rows["plain, bf16"][1:4], ["", "2.00 [2.00 2.00]", "3.00 [3.00 3.00]"])
        self.assertEqual(rows["expert"][1:4], ["0.10", "3.00 [2.00 4.00]", "4.50 [3.00 6.00]"])
        self.assertEqual(rows["expert, bf16"][2:4], ["", ""])

    def test_models_are_compared_with_the_fastest_form_of_a_round(self):
        rounds = {"fp32": [[200, 100, 50], [300, 50, 100]], "bf16": [[400, 200, 50], [300, 50, 50]]}
        rows = rows_of(compare_models.print_table, {"dlrm": rounds})
        self.assertEqual(rows["dlrm, fp32"], ["250 [200 300]", "75 [50 100]", "75 [50 100]", "2.00 [1.00 3.00]"])
        self.assertEqual(rows["dlrm, bf16"][-1], "2.50 [2.00 3.00]")


if __name__ == "__main__":
    unittest.main()
