"""Tests of scripts/data_tables.py and scripts/render-tables, and of docs/data as it is.

    python3 -m unittest discover tests/book
"""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
import data_tables

DATA = {
    "head": {"written_on": "2026-11-29", "duration_s": 3},
    "tables": {
        "loads": {
            "columns": [
                {"key": "medium", "heading": "medium", "kind": "text"},
                {"key": "tests", "heading": "tests", "kind": "codes"},
                {"key": "requests", "heading": "requests", "kind": "integer"},
                {"key": "mean_us", "heading": "mean, µs", "kind": "figure"},
                {"key": "error_percent", "heading": "error", "kind": "percent", "digits": 1, "signed": True,
                 "optional": True},
                {"key": "is_late", "heading": "late", "kind": "flag"},
            ],
            "rows": [
                {"medium": "hdd", "tests": ["a", "b"], "requests": 1200, "mean_us": 11858, "error_percent": 0.6,
                 "is_late": True},
                {"medium": "ssd | nvme", "tests": ["c"], "requests": 7, "mean_us": 5.456, "error_percent": None,
                 "is_late": False},
            ],
        }
    },
}
RENDERED = """\
| medium | tests | requests | mean, µs | error | late |
| --- | --- | ---: | ---: | ---: | --- |
| hdd | `a`, `b` | 1,200 | 11,858 | +0.6 % | yes |
| ssd \\| nvme | `c` | 7 | 5.46 | – | no |
"""


def cells(markdown):
    """The rows of all tables of a page, without headings."""
    rows, is_body = [], False
    for line in markdown.splitlines():
        is_body = line.startswith("|") and (is_body or line.startswith("| ---"))
        if is_body and not line.startswith("| ---"):
            rows.append(line)
    return rows


class DataTest(unittest.TestCase):
    def setUp(self):
        self.data = copy.deepcopy(DATA)
        self.table = self.data["tables"]["loads"]

    def refusal(self):
        """The message with which the changed data are refused."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "loads.json"
            path.write_text(json.dumps(self.data))
            with self.assertRaises(data_tables.DataMistake) as raised:
                data_tables.read_data(path, "docs/data/loads.json")
        return str(raised.exception)

    def test_sound_table_becomes_markdown(self):
        data_tables.check_data(self.data, "loads.json")
        directive = data_tables.parse_directive("data/loads.json loads", "page")
        self.assertEqual(data_tables.render(directive, self.data, "page")[0], RENDERED)

    def test_condition_chooses_rows_and_drops_its_column(self):
        directive = data_tables.parse_directive('data/loads.json loads where medium="ssd | nvme" show mean_us', "page")
        self.assertEqual(cells(data_tables.render(directive, self.data, "page")[0]), ["| 5.46 |"])
        directive = data_tables.parse_directive('data/loads.json loads where medium="hdd"', "page")
        text, rows = data_tables.render(directive, self.data, "page")
        self.assertEqual((text.splitlines()[0], len(rows)), ("| tests | requests | mean, µs | error | late |", 1))

    def test_condition_without_rows_is_refused(self):
        directive = data_tables.parse_directive('data/loads.json loads where medium="tape"', "page")
        with self.assertRaisesRegex(data_tables.DataMistake, "page: no row of table loads"):
            data_tables.render(directive, self.data, "page")

    def test_malformed_row_is_refused_with_file_row_and_key(self):
        changes = [
            (lambda row: row.pop("mean_us"), "row 2: lacks the key `mean_us`"),
            (lambda row: row.update(mean_ms=3), "row 2: unknown key `mean_ms`"),
            (lambda row: row.update(mean_us="5"), 'row 2, key `mean_us`: expected a number, and not "5"'),
            (lambda row: row.update(mean_us=None), "row 2, key `mean_us`: expected a number, and not null"),
            (lambda row: row.update(requests=7.5), "row 2, key `requests`: expected a whole number, and not 7.5"),
            (lambda row: row.update(requests=True), "row 2, key `requests`: expected a whole number, and not true"),
            (lambda row: row.update(is_late=0), "row 2, key `is_late`: expected true or false, and not 0"),
            (lambda row: row.update(medium="a\nb"), "row 2, key `medium`: expected a text of one line"),
            (lambda row: row.update(tests="c"), "row 2, key `tests`: expected a list of texts"),
            (lambda row: row.update(tests=["`c`"]), "row 2, key `tests`: expected a list of texts without backquotes"),
        ]
        for change, message in changes:
            with self.subTest(message):
                self.setUp()
                change(self.table["rows"][1])
                self.assertIn(f"docs/data/loads.json: table loads, {message}", self.refusal())

    def test_number_without_unit_in_its_key_is_refused(self):
        self.table["columns"][3]["key"] = "mean"
        self.assertIn("table loads, column 4: the key `mean` of a number ends in no unit", self.refusal())
        self.setUp()
        self.data["head"]["duration"] = 3
        self.assertIn("head, key `duration`: a number's key ends in its unit", self.refusal())

    def test_unknown_kind_of_column_is_refused(self):
        self.table["columns"][0]["kind"] = "words"
        self.assertIn("table loads, column 1: no kind `words`", self.refusal())

    def test_text_that_is_no_strict_json_is_refused(self):
        cases = [('{"head": NaN}', "NaN is no number"), ('{"head": 1, "head": 2}', "has the key `head` twice"),
                 ('{"head":', "docs/data/x.json: Expecting value"), ("[]", "expected an object with the keys")]
        for text, message in cases:
            with self.subTest(text), tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "x.json"
                path.write_text(text)
                with self.assertRaises(data_tables.DataMistake) as raised:
                    data_tables.read_data(path, "docs/data/x.json")
                self.assertIn(message, str(raised.exception))

    def test_malformed_measurement_is_refused_and_kept(self):
        self.table["rows"][1]["mean_us"] = "fast"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "loads.json"
            with self.assertRaisesRegex(data_tables.DataMistake, "loads.json: table loads, row 2, key `mean_us`"):
                data_tables.write_data(path, self.data)
            self.assertEqual(json.loads(path.read_text()), self.data)

    def test_written_data_read_back_the_same(self):
        self.assertEqual(json.loads(data_tables.format_data(self.data)), self.data)
        self.table["rows"] = []
        self.assertEqual(json.loads(data_tables.format_data(self.data)), self.data)


class PagesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.docs = pathlib.Path(folder.name) / "docs"
        (self.docs / "data").mkdir(parents=True)
        self.file = self.docs / "data/loads.json"
        self.file.write_text(data_tables.format_data(DATA))
        self.page = self.docs / "loads.md"
        self.page.write_text("# Loads\n\n<!-- book-table data/loads.json loads -->\n")

    def test_kept_table_is_written_and_held_to_its_data(self):
        self.page.write_text("# Loads\n\n<!-- table data/loads.json loads -->\n<!-- /table -->\n\nMore.\n")
        self.assertIn("docs/loads.md: a table is not its data's", data_tables.check_pages(self.docs)[0])
        self.assertEqual(data_tables.write_pages(self.docs), [self.page])
        self.assertEqual(cells(self.page.read_text()), cells(RENDERED))
        self.assertTrue(self.page.read_text().endswith("<!-- /table -->\n\nMore.\n"))
        self.assertEqual((data_tables.check_pages(self.docs), data_tables.write_pages(self.docs)), ([], []))
        self.page.write_text(self.page.read_text().replace("11,858", "11,857"))
        self.assertIn("docs/loads.md: a table is not its data's", data_tables.check_pages(self.docs)[0])

    def test_row_that_no_page_shows_is_a_mistake(self):
        self.assertEqual(data_tables.check_pages(self.docs), [])
        self.page.write_text('<!-- book-table data/loads.json loads where medium="hdd" -->\n')
        hidden = ["docs/data/loads.json: table loads, row 2: no page shows it"]
        self.assertEqual(data_tables.check_pages(self.docs), hidden)
        # A page that shows some columns shows no row whole.
        self.page.write_text("<!-- book-table data/loads.json loads show medium -->\n")
        self.assertEqual(len(data_tables.check_pages(self.docs)), 2)

    def test_file_that_no_page_shows_is_a_mistake(self):
        (self.docs / "data/left.json").write_text(data_tables.format_data(DATA))
        self.assertEqual(data_tables.check_pages(self.docs), ["docs/data/left.json: no page shows it"])

    def test_unreadable_directive_is_a_mistake(self):
        for text, message in [("<!-- book-table data/loads.json -->", "expected a file and a table"),
                              ("<!-- book-table data/loads.json rows -->", "has no table `rows`, only loads"),
                              ("<!-- book-table data/none.json rows -->", "docs/data/none.json: it can't be read"),
                              ("<!-- book-table ../../x.json rows -->", "is not in docs/data"),
                              ('<!-- book-table data/loads.json loads where late="1" -->', "has no column `late`"),
                              ("<!-- book-table data/loads.json loads if -->", "expected `where"),
                              ("<!-- table data/loads.json loads -->\n", "a table's comment has no end")]:
            with self.subTest(text):
                self.page.write_text(text)
                self.assertIn(message, "\n".join(data_tables.check_pages(self.docs)))

    def test_directive_in_block_of_code_stays(self):
        text = "```\n<!-- book-table data/none.json none -->\n```\n"
        self.assertEqual(data_tables.TablesOfPages(self.docs).expand("loads.md", text), text)

    def preprocess(self):
        chapter = {"name": "Loads", "content": self.page.read_text(), "path": "loads.md", "sub_items": []}
        above = {"name": "Above", "content": "# Above", "path": None, "sub_items": [{"Chapter": chapter}]}
        context = {"root": str(self.docs.parent), "config": {"book": {"src": "docs"}}}
        book = [context, {"items": ["Separator", {"Chapter": above}]}]
        return subprocess.run([ROOT / "scripts/render-tables"], input=json.dumps(book), capture_output=True, text=True)

    def test_book_has_all_rows(self):
        done = self.preprocess()
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        content = json.loads(done.stdout)["items"][1]["Chapter"]["sub_items"][0]["Chapter"]["content"]
        self.assertEqual(cells(content), cells(RENDERED))
        self.assertIn("2 rows. [All data](data/loads.json)", content)

    def test_book_with_malformed_data_is_refused(self):
        self.file.write_text(self.file.read_text().replace('"mean_us": 5.456', '"mean_us": "fast"'))
        done = self.preprocess()
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("docs/data/loads.json: table loads, row 2, key `mean_us`: expected a number", done.stderr)

    def test_preprocessor_supports_every_renderer(self):
        self.assertEqual(subprocess.run([ROOT / "scripts/render-tables", "supports", "html"]).returncode, 0)


class OwnPagesTest(unittest.TestCase):
    def test_own_data_and_pages_are_sound(self):
        self.assertEqual(data_tables.check_pages(ROOT / "docs"), [])

    def test_book_shows_each_row_of_large_tables(self):
        pages = data_tables.TablesOfPages(ROOT / "docs")
        for path in sorted((ROOT / "docs").rglob("*.md")):
            text = path.read_text()
            if not data_tables.BOOK_TABLE.search(text):
                continue
            with self.subTest(path.name):
                expanded = pages.expand(path.relative_to(ROOT / "docs"), text)
                named = sum(len(pages.render(path.relative_to(ROOT / "docs"), words)[1].splitlines()) - 2
                            for words in data_tables.BOOK_TABLE.findall(text))
                self.assertEqual(len(cells(expanded)), len(cells(text)) + named)


if __name__ == "__main__":
    unittest.main()
