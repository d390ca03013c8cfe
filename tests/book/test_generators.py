"""Tests of the programs in benches/ and scripts/ that write docs/data. None of them measures anything here.

    python3 -m unittest discover tests/book
"""

import importlib.machinery
import importlib.util
import pathlib
import sys
import unittest
import unittest.mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "benches")]
import data_tables


def load_program(name, *arguments):
    """A program without an ending, as a module; some read their arguments at once."""
    path = ROOT / name
    loader = importlib.machinery.SourceFileLoader(path.name.replace("-", "_"), str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    with unittest.mock.patch.object(sys, "argv", [name, *arguments]):
        loader.exec_module(module)
    return module


def read_tables(name):
    return data_tables.read_data(ROOT / "docs/data" / name, name)["tables"]


class FidelityTest(unittest.TestCase):
    def setUp(self):
        self.fidelity = load_program("benches/fidelity")

    def test_summary_covers_all_rows(self):
        tables = read_tables("fidelity.json")
        groups = {name: tables[name]["rows"] for name in self.fidelity.GROUPS}
        self.assertEqual(self.fidelity.summarize(groups), tables["summary"]["rows"])
        # The data of November 2026 are rounded to 0.1 %: a row at the goal's edge may be on either side.
        for counted, kept in zip(self.fidelity.reach_goals(groups), tables["goals"]["rows"], strict=True):
            self.assertEqual([kept[key] for key in ("group", "goal", "compared_rows")],
                             [counted[key] for key in ("group", "goal", "compared_rows")])
            self.assertLessEqual(abs(counted["reached_rows"] - kept["reached_rows"]), 2)

    def test_measured_cells_become_sound_data(self):
        fidelity = self.fidelity
        modelled = fidelity.Distribution([(float(us), 10) for us in range(100, 1100)])
        delivered = fidelity.Distribution([(us * 1.02, 10) for us in range(100, 1100)])
        cell = {"medium": "hdd-7200-sata", "factor": 2.0, "load": "random reads", "part": None, "block": 4, "depth": 1,
                "requests": delivered.count, "modelled": modelled, "delivered": delivered, "verdict": "faithful",
                "demerit": fidelity.demerit(modelled, delivered), "mean": delivered.mean / modelled.mean - 1}
        label = {"load": "70/30 mix", "part": "reads", "block": 4, "depth": 4}
        part = {**cell, **fidelity.kind_cell(label, 10.0, 20, 11.0)}
        figure = {"figure": "read-latency-us", "percentile": 0, "estimate": True, "queue_depth": 1,
                  "block_bytes": 4096, "published": 100.0, "modelled": 99.0}
        published = [fidelity.published_row("hdd-7200-sata", row) for row in (figure, {**figure, "modelled": None})]
        groups = {"delivered": [fidelity.delivered_row(cell)], "path_cost": [fidelity.delivered_row(cell)],
                  "users": [fidelity.delivered_row(cell), fidelity.delivered_row(part)], "published": published}
        data = fidelity.data_of({"written_on": "2026-11-30"}, groups)
        data_tables.check_data(data, "fidelity.json")
        users = data["tables"]["users"]["rows"]
        self.assertEqual([row["mean_percent"] for row in users], [2.0, 10.0])
        self.assertEqual([row["p50_percent"] for row in users], [2.0, None])
        summary = {(row["group"], row["figure"]): row for row in data["tables"]["summary"]["rows"]}
        mean, p50 = (summary[fidelity.GROUPS["users"], name] for name in ("mean", "p50"))
        self.assertEqual((mean["worst_percent"], mean["worst_at"]),
                         (10.0, "hdd-7200-sata, 70/30 mix 4 KiB QD4: reads"))
        self.assertEqual((p50["compared_rows"], p50["all_rows"]), (1, 2))
        self.assertEqual(summary[fidelity.GROUPS["published"], "difference"]["compared_rows"], 1)


class SiliconTest(unittest.TestCase):
    def setUp(self):
        self.silicon = load_program("benches/silicon")

    def test_summary_covers_all_rows(self):
        tables = read_tables("silicon.json")
        rows = tables["figures"]["rows"]
        self.assertEqual(list(self.silicon.summary_rows(rows)), tables["summary"]["rows"])
        judged = sum(row["judged_rows"] for row in tables["summary"]["rows"] if row["medium"] == self.silicon.ALL)
        self.assertEqual(judged, len(rows))
        off = [row for row in rows if not row["is_within"]]
        self.assertEqual(len(tables["off"]["rows"]), len(off))

    def test_lines_of_model_become_sound_data(self):
        line = ('{"medium": "a", "model": "a", "offered_per_s": 30000.0, "held_out": %s, "saturated": false, '
                '"figure": "%s", "measured": 100.0, "modelled": %s, "ratio": %s, "within": %s}')
        lines = [line % ("true", "read p99", 50.0, 0.5, "false"), line % ("false", "read p99", 180.0, 1.8, "false"),
                 line % ("false", "write p50", 101.0, 1.01, "true"), line % ("true", "writes/s", 99.0, 0.99, "true")]
        data = self.silicon.make_data([self.silicon.figure_row(each) for each in lines], 20)
        data_tables.check_data(data, "silicon.json")
        summary = {(row["medium"], row["group"]): row for row in data["tables"]["summary"]["rows"]}
        # A figure of half the measured one is further off than one of 1.8 times.
        self.assertEqual([row["difference_percent"] for row in data["tables"]["off"]["rows"]], [-50.0, 80.0])
        self.assertEqual((summary["all", "fitted"]["within_rows"], summary["all", "fitted"]["judged_rows"]), (1, 2))
        self.assertEqual(summary["a", self.silicon.RATES]["worst_at"], "30,000 offered, writes/s")


class PredictionTest(unittest.TestCase):
    def setUp(self):
        self.prediction = load_program("benches/prediction")

    def test_summary_covers_all_rows(self):
        tables = read_tables("prediction.json")
        runs = {row["run"] for row in tables["runs"]["rows"]}
        for row in tables["summary"]["rows"]:
            role = {"all that judge": "judged only", "tuned on": "tuned on"}.get(row["runs"])
            own = [one for one in tables["predictions"]["rows"]
                   if one["left_out"] == row["left_out"] and (one["run"] == row["runs"] or one["role"] == role)]
            with self.subTest(f"{row['left_out']}, {row['runs']}"):
                refused = sum(one["refused"] is not None for one in own)
                self.assertEqual((len(own), refused), (row["left_out_cells"], row["refused_cells"]))
                for figure in ("throughput", "mean", "p50", "p99"):
                    errors = [abs(one[f"{figure}_percent"]) for one in own if one["refused"] is None]
                    self.assertEqual(max(errors, default=None), row[f"{figure}_worst_percent"])
        self.assertLessEqual({row["run"] for row in tables["predictions"]["rows"]}, runs)

    def cell(self, name, error, refused=None):
        figure = {"measured": 100.0, "error": error, "is_covered": error < 0.5,
                  "predicted": {"value": 100 * (1 + error), "low": 50.0, "high": 200.0}}
        figures = {key: figure for key in ("throughput_per_s", "mean_us", "p50_us", "p99_us")}
        if refused:
            figure = {"measured": 100.0, "error": None, "is_covered": None, "predicted": None}
            figures = dict.fromkeys(figures, figure)
        return {"cell": name, "without": "a storage", "repetitions": 3, "refused": refused, "nearest_per_s": 150.0,
                "by_iops_per_s": None, **figures}

    def test_answers_become_sound_data(self):
        prediction = self.prediction
        cells = [self.cell("rocksdb/hdd/a", 0.1), self.cell("rocksdb/ssd/a", 0.7),
                 self.cell("rocksdb/nvme/a", 0.0, "it is too far")]
        left_out = [{"cell": "rocksdb/hdd/b", "why": "rocksdb/hdd/b was not steady"}]
        answers = [(False, {"from": ["quickstart"], "name": "quickstart", "cells": cells, "left_out": left_out,
                            "measured_cells": 3})]
        data = prediction.data_of({"written_on": "2026-11-30"}, {
            "summary": prediction.summary_of(answers), "coverage": prediction.coverage_of(cells),
            "refusals": prediction.refusals_of([answers[0][1]]), "predictions": prediction.predictions_of(answers)})
        data_tables.check_data(data, "prediction.json")
        tables = {name: table["rows"] for name, table in data["tables"].items()}
        summary = tables["summary"][0]
        self.assertEqual([summary[key] for key in ("left_out_cells", "refused_cells")], [3, 1])
        self.assertEqual([summary[key] for key in ("mean_median_percent", "mean_worst_percent")], [40.0, 70.0])
        self.assertEqual(summary["throughput_width_factor"], 2.0)
        self.assertEqual([row["is_covered"] for row in tables["predictions"]], [True, False, None])
        self.assertEqual([row["nearest_percent"] for row in tables["predictions"]], [50.0, 50.0, None])
        self.assertEqual([row["reason"] for row in tables["refusals"]],
                         ["a cell was not steady", "without a storage: it is too far"])
        self.assertEqual(tables["coverage"][0]["p50_percent"], 50.0)


class GatewaySuitesTest(unittest.TestCase):
    def test_suite_that_did_not_run_keeps_its_rows(self):
        suites = load_program("benches/gateway-suites")
        earlier = {"tables": read_tables("gateway-suites.json")}
        found = {"TestA": ["passed", ""], "TestB": [suites.BY_CODE, ""], "Test`C`": ["failed", "nobody knows why"]}
        kept = {"versitygw": {"commit": "5d9d548", "day": "2026-11-30", "now": found, "now ended": True}}
        data, unexplained = suites.data_of(kept, earlier)
        data_tables.check_data(data, "gateway-suites.json")
        results = {(row["suite"], row["compared"]): row for row in data["tables"]["results"]["rows"]}
        for row in earlier["tables"]["results"]["rows"]:
            if row["suite"] != "versitygw":
                self.assertEqual(results[row["suite"], row["compared"]], row)
        versitygw = [row for row in results.values() if row["suite"] == "versitygw"]
        self.assertEqual([(row["passed_tests"], row["failed_tests"]) for row in versitygw], [(1, 2), (2, 1)])
        failures = [row for row in data["tables"]["failures"]["rows"] if row["suite"] == "versitygw"]
        self.assertEqual([(row["reason"], row["examples"]) for row in failures],
                         [(suites.TEXTS_ALONE, ["TestB"]), (suites.UNKNOWN, ["Test'C'"])])
        self.assertEqual(len(unexplained), 1)

    def test_results_count_every_failed_test(self):
        tables = read_tables("gateway-suites.json")
        for row in tables["results"]["rows"]:
            counted = sum(one["failed_tests"] for one in tables["failures"]["rows"] if one["suite"] == row["suite"])
            if row["compared"] != "status and code":
                self.assertEqual(counted, row["failed_tests"], row["suite"])


class OutsideStudiesTest(unittest.TestCase):
    def setUp(self):
        self.outside = load_program("scripts/outside-table")
        self.rows = read_tables("outside-studies.json")["ratios"]["rows"]

    def test_summary_covers_all_ratios(self):
        summary = read_tables("outside-studies.json")["summary"]["rows"]
        self.assertEqual(list(self.outside.summarize(self.rows)), summary)
        self.assertEqual(summary[0]["published_count"], len(self.rows))

    def test_errors_are_ours_over_published(self):
        for row in self.rows:
            ours, published = row["ours_ratio"], row["published_ratio"]
            if ours is None:
                self.assertIsNone(row["error_percent"])
                continue
            self.assertAlmostEqual(row["error_percent"], (ours / published - 1) * 100, delta=0.1)

    def test_reported_cells_become_sound_rows(self):
        ratio = {"study": "fio", "workload": "reads", "figure": "read mean", "storage": "nvme", "against": "sata",
                 "value": 0.5}
        cells = [{"storage": storage, "workload": "reads", "state": "completed", "inputs": {"verdict": "known"},
                  "certificate": {"verdict": verdict}, "benchmark": {"figures": [{"name": "read mean", "value": us}]}}
                 for storage, us, verdict in (("nvme", 60.0, "faithful"), ("sata", 100.0, "doubtful"))]
        measured = self.outside.measured_row(ratio, cells, "2026-11-30")
        self.assertEqual([measured[key] for key in ("ours_ratio", "error_percent", "timing", "inputs")],
                         [0.6, 20.0, "doubtful", "known"])
        missing = self.outside.measured_row(ratio, cells[:1], "2026-11-30")
        self.assertIsNone(missing["ours_ratio"])
        data = self.outside.data_of([measured, missing], [])
        data_tables.check_data(data, "outside-studies.json")
        self.assertEqual([data["tables"]["summary"]["rows"][0][key] for key in ("published_count", "measured_count")],
                         [2, 1])

    def test_job_is_compared_by_its_duration(self):
        ratio = {"study": "sort", "workload": "terasort", "figure": "duration", "storage": "ssd", "against": "disk",
                 "value": 0.5}
        cells = [{"storage": storage, "workload": "terasort", "state": "completed", "job": {"duration_s": duration_s}}
                 for storage, duration_s in (("ssd", 30.0), ("disk", 50.0))]
        self.assertEqual(self.outside.measured_row(ratio, cells, "2026-11-30")["ours_ratio"], 0.6)

    def test_ratio_without_a_run_keeps_its_row(self):
        ratio = {"study": "fio", "workload": "reads", "figure": "read mean", "storage": "nvme", "against": "sata",
                 "value": 0.5}
        earlier = self.outside.measured_row(ratio, [], "2026-11-30") | {"ours_ratio": 0.6}
        self.assertEqual(self.outside.kept_row(ratio, [earlier]), earlier)
        other = self.outside.kept_row(ratio | {"value": 0.7}, [earlier])
        self.assertEqual([other[key] for key in ("published_ratio", "ours_ratio", "run_on")], [0.7, None, None])


class CephTestsTest(unittest.TestCase):
    def test_own_data_come_from_the_same_results(self):
        """The tests by name, as the data have them, give the same data again."""
        ceph = load_program("benches/gateway-s3-tests", ".")
        written = data_tables.read_data(ROOT / "docs/data/gateway-s3-tests.json", "gateway-s3-tests.json")
        tables = {name: table["rows"] for name, table in written["tables"].items()}
        found = {name: "failed" for row in tables["reasons"] for name in row["tests"]}
        found |= {name: "NotImplemented" for row in tables["not_implemented"] for name in row["tests"]}
        result = tables["results"][0]
        found |= {f"passed_{count}": None for count in range(result["passed_tests"])}
        found |= {f"skipped_{count}": "" for count in range(result["skipped_tests"])}
        data, unexplained = ceph.data_of(found, "8f0ae7b")
        self.assertEqual((data["tables"], unexplained), (written["tables"], []))

    def test_unknown_failure_is_told(self):
        ceph = load_program("benches/gateway-s3-tests", ".")
        data, unexplained = ceph.data_of({"test_a": None, "test_b": "AssertionError"}, "8f0ae7b")
        data_tables.check_data(data, "gateway-s3-tests.json")
        self.assertEqual((data["tables"]["results"]["rows"][0]["unexplained_tests"], unexplained), (1, ["test_b"]))


if __name__ == "__main__":
    unittest.main()
