"""Tables of docs/data: reads, checks, renders and writes them.

A file of docs/data is JSON, with one row a line. It has

    head      what was measured and with which versions and settings: plain texts and numbers
    tables    by name; each has `columns` and `rows`

A column has a `key`, a `heading` and a `kind`. A row has each column's key and no other one. Kinds:

    text      a text; Markdown within a line is allowed
    code      a text, shown as code
    codes     a list of texts, shown as code
    integer   a whole number
    number    a number, shown as it is
    figure    a number, shown with three significant digits, or whole from 100 on
    percent   a number, shown with `digits` decimals (0) and, if `signed`, with its sign
    flag      true or false, shown as yes or no

`optional` columns may be null. The key of a number ends in its unit (UNITS), or the column's `unit_from` names the
column whose text has the unit.
"""

import collections
import json
import math
import os
import pathlib
import re

DOCS = pathlib.Path(__file__).resolve().parent.parent / "docs"
KINDS = ("text", "code", "codes", "integer", "number", "figure", "percent", "flag")
NUMBERS = ("integer", "number", "figure", "percent")
UNITS = (
    "us ms s min bytes kib mib percent factor ratio count requests per_s tests cells rows predictions repetitions "
    "options threads"
).split()
COLUMN_KEYS = {"key", "heading", "kind", "optional", "digits", "signed", "unit_from"}
LISTED_UNITS = "expected one of _" + ", _".join(UNITS)
MISSING = "–"

# `<!-- book-table FILE TABLE ... -->` stands for rows that only the book shows.
BOOK_TABLE = re.compile(r"<!-- book-table (.*?) -->")
# Between `<!-- table FILE TABLE ... -->` and `<!-- /table -->`, the page has the rows themselves.
KEPT_TABLE = re.compile(r"<!-- table (.*?) -->\n(.*?)<!-- /table -->", re.S)
WORDS = re.compile(r'([\w-]+)="((?:[^"\\]|\\.)*)"|(\S+)')
FENCE = re.compile(r"^(?:```|~~~)")

Directive = collections.namedtuple("Directive", "file table where show")


class DataMistake(Exception):
    """What is wrong in a file of data or in a page, and where."""


def column(key, heading, kind="text", **more):
    """A column of a table; `more` has `optional`, `digits`, `signed` or `unit_from`."""
    return {"key": key, "heading": heading, "kind": kind, **more}


def round_figure(value):
    """Six significant digits: no clock here has more."""
    return None if value is None else float(f"{value:.6g}")


def to_percent(share):
    return None if share is None else round(share * 100, 2)


def read_data(path, label):
    """The checked contents of a file; `label` names it in messages."""
    try:
        text = pathlib.Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise DataMistake(f"{label}: it can't be read: {error}") from None
    try:
        data = json.loads(text, object_pairs_hook=make_object, parse_constant=refuse_constant)
    except ValueError as error:
        raise DataMistake(f"{label}: {error}") from None
    check_data(data, label)
    return data


def make_object(pairs):
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key `{twice}` twice: {json.dumps(found)[:120]}")
    return found


def refuse_constant(word):
    raise ValueError(f"{word} is no number")


def check_data(data, label):
    if not isinstance(data, dict) or set(data) != {"head", "tables"}:
        raise DataMistake(f"{label}: expected an object with the keys `head` and `tables`")
    for key, value in data["head"].items() if isinstance(data["head"], dict) else [("", None)]:
        if not isinstance(value, (str, int, float)) or isinstance(value, bool) or value == "":
            raise DataMistake(f"{label}: head, key `{key}`: expected a text or a number")
        if not isinstance(value, str) and not has_unit(key):
            raise DataMistake(f"{label}: head, key `{key}`: a number's key ends in its unit: {LISTED_UNITS}")
    if not isinstance(data["tables"], dict) or not data["tables"]:
        raise DataMistake(f"{label}: `tables` has no table")
    for name, table in data["tables"].items():
        place = f"{label}: table {name}"
        if not isinstance(table, dict) or set(table) != {"columns", "rows"}:
            raise DataMistake(f"{place}: expected the keys `columns` and `rows`")
        check_columns(table["columns"], place)
        if not isinstance(table["rows"], list):
            raise DataMistake(f"{place}: `rows` must be a list")
        for number, row in enumerate(table["rows"], 1):
            check_row(row, table["columns"], f"{place}, row {number}")


def check_columns(columns, place):
    if not isinstance(columns, list) or not columns:
        raise DataMistake(f"{place}: it has no columns")
    keys = set()
    for number, column in enumerate(columns, 1):
        here = f"{place}, column {number}"
        if not isinstance(column, dict):
            raise DataMistake(f"{here}: expected an object")
        for key in ("key", "heading", "kind"):
            if not isinstance(column.get(key), str):
                raise DataMistake(f"{here}: `{key}` must be a text")
        if unknown := set(column) - COLUMN_KEYS:
            raise DataMistake(f"{here}: unknown key `{sorted(unknown)[0]}`")
        key, kind = column["key"], column["kind"]
        if not re.fullmatch(r"[a-z][a-z0-9_]*", key) or key in keys:
            raise DataMistake(f"{here}: `{key}` is no key, or stands there twice")
        keys.add(key)
        if kind not in KINDS:
            raise DataMistake(f"{here}: no kind `{kind}`: expected one of {', '.join(KINDS)}")
        if not isinstance(column.get("optional", False), bool) or not isinstance(column.get("signed", False), bool):
            raise DataMistake(f"{here}: `optional` and `signed` are true or false")
        if column.get("digits", 0) not in range(10) or isinstance(column.get("digits"), (bool, float)):
            raise DataMistake(f"{here}: `digits` must be a whole number from 0 to 9")
        if kind in NUMBERS and "unit_from" not in column and not has_unit(key):
            raise DataMistake(f"{here}: the key `{key}` of a number ends in no unit: {LISTED_UNITS}")
        if kind == "percent" and not key.endswith("_percent"):
            raise DataMistake(f"{here}: the key `{key}` of a percentage must end in _percent")
    texts = {column["key"] for column in columns if column["kind"] == "text"}
    for number, column in enumerate(columns, 1):
        if "unit_from" in column and column["unit_from"] not in texts:
            raise DataMistake(f"{place}, column {number}: `unit_from` names no column of texts")


def has_unit(key):
    return any(key == unit or key.endswith(f"_{unit}") for unit in UNITS)


def check_row(row, columns, place):
    if not isinstance(row, dict):
        raise DataMistake(f"{place}: expected an object")
    for column in columns:
        key, kind = column["key"], column["kind"]
        if key not in row:
            raise DataMistake(f"{place}: lacks the key `{key}`")
        value = row[key]
        if value is None and column.get("optional"):
            continue
        if problem := find_problem(value, kind):
            raise DataMistake(f"{place}, key `{key}`: {problem}, and not {json.dumps(value, ensure_ascii=False)[:60]}")
    if unknown := set(row) - {column["key"] for column in columns}:
        raise DataMistake(f"{place}: unknown key `{sorted(unknown)[0]}`")


def find_problem(value, kind):
    """What was expected, or nothing if the value is of that kind."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if kind in ("text", "code"):
        is_right = isinstance(value, str) and "\n" not in value and (kind == "text" or (value and "`" not in value))
        return None if is_right else "expected a text of one line" + (" without backquotes" if kind == "code" else "")
    if kind == "codes":
        is_right = isinstance(value, list) and value and all(find_problem(one, "code") is None for one in value)
        return None if is_right else "expected a list of texts without backquotes"
    if kind == "integer":
        return None if is_number and isinstance(value, int) else "expected a whole number"
    if kind == "flag":
        return None if isinstance(value, bool) else "expected true or false"
    return None if is_number else "expected a number"


def show_value(value, column):
    """A cell as Markdown."""
    kind = column["kind"]
    if value is None:
        return MISSING
    if kind == "text":
        return value.replace("|", "\\|")
    if kind == "code":
        return show_code(value)
    if kind == "codes":
        return ", ".join(map(show_code, value))
    if kind == "flag":
        return "yes" if value else "no"
    if kind == "percent":
        return f"{value:{'+' if column.get('signed') else ''},.{column.get('digits', 0)}f} %"
    if kind == "figure":
        return show_figure(value)
    return f"{value:,}"


def show_code(text):
    return "`" + text.replace("|", "\\|") + "`"


def show_figure(value):
    size = abs(value)
    if size == 0:
        return "0"
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def render_rows(columns, rows):
    """A table in Markdown."""
    if not rows:
        return "No rows.\n"
    lines = ["| " + " | ".join(column["heading"] for column in columns) + " |"]
    lines.append("| " + " | ".join("---:" if column["kind"] in NUMBERS else "---" for column in columns) + " |")
    lines += ["| " + " | ".join(show_value(row[column["key"]], column) for column in columns) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def render_head(head):
    lines = [f"| {show_head_key(key, value)} | {show_head(value)} |" for key, value in head.items()]
    return "\n".join(["| of this data | |", "| --- | --- |", *lines]) + "\n"


def show_head_key(key, value):
    """`cell_duration_s` becomes `cell duration, s`, and `media_count` becomes `media`."""
    words, _, unit = key.rpartition("_")
    if isinstance(value, str):
        return key.replace("_", " ")
    return words.replace("_", " ") + ("" if unit == "count" else f", {unit}")


def show_head(value):
    return value.replace("|", "\\|") if isinstance(value, str) else f"{value:,}"


def parse_directive(words, place):
    """`FILE TABLE [where KEY="VALUE" ...] [show KEY,KEY]`; the table `head` is the head."""
    found = [(match[1], match[2], match[3]) for match in WORDS.finditer(words)]
    plain = [word for _, _, word in found[:2]]
    if len(plain) < 2 or not all(plain):
        raise DataMistake(f"{place}: expected a file and a table: {words}")
    where, show, state = {}, None, ""
    for key, value, word in found[2:]:
        if word in ("where", "show"):
            state = word
        elif key and state == "where":
            where[key] = value.replace('\\"', '"').replace("\\\\", "\\")
        elif word and state == "show" and show is None:
            show = word.split(",")
        else:
            expected = '`where KEY="VALUE"` or `show KEY,KEY`'
            raise DataMistake(f"{place}: expected {expected}, and not {word or key}: {words}")
    return Directive(plain[0], plain[1], where, show)


def render(directive, data, place):
    """The Markdown of a directive, and the rows that it shows whole."""
    if directive.table == "head":
        if directive.where or directive.show:
            raise DataMistake(f"{place}: the head has neither rows nor columns to choose")
        return render_head(data["head"]), []
    table = data["tables"].get(directive.table)
    if table is None:
        known = ", ".join(data["tables"])
        raise DataMistake(f"{place}: {directive.file} has no table `{directive.table}`, only {known}")
    by_key = {column["key"]: column for column in table["columns"]}
    for key in [*directive.where, *(directive.show or [])]:
        if key not in by_key:
            raise DataMistake(f"{place}: table {directive.table} of {directive.file} has no column `{key}`")
    rows = [row for row in table["rows"] if all(str(row[key]) == value for key, value in directive.where.items())]
    if directive.where and not rows:
        raise DataMistake(f"{place}: no row of table {directive.table} of {directive.file} has {directive.where}")
    shown = directive.show or [key for key in by_key if key not in directive.where]
    return render_rows([by_key[key] for key in shown], rows), [] if directive.show else rows


def replace_outside_code(text, pattern, replace):
    """As `pattern.sub`, except in fenced blocks of code."""
    pieces, fenced, plain = [], False, []
    for line in text.splitlines(keepends=True):
        if FENCE.match(line.strip()):
            if not fenced:
                pieces.append(pattern.sub(replace, "".join(plain)))
                plain = []
            fenced = not fenced
            pieces.append(line)
        elif fenced:
            pieces.append(line)
        else:
            plain.append(line)
    return "".join(pieces) + pattern.sub(replace, "".join(plain))


class TablesOfPages:
    """Expands the directives of pages, reads each file once, and remembers which rows were shown."""

    def __init__(self, docs):
        self.docs = pathlib.Path(docs)
        self.files = {}
        self.shown = collections.defaultdict(set)

    def read(self, page, file, place):
        """The data that a page names, as a link would, relative to itself."""
        path = (self.docs / page).parent.joinpath(file).resolve()
        folder = (self.docs / "data").resolve()
        if path.parent != folder:
            raise DataMistake(f"{place}: {file} is not in docs/data")
        if path.name not in self.files:
            self.files[path.name] = read_data(path, f"docs/data/{path.name}")
        return path.name, self.files[path.name]

    def render(self, page, words):
        place = f"docs/{page}"
        directive = parse_directive(words, place)
        name, data = self.read(page, directive.file, place)
        text, rows = render(directive, data, place)
        self.shown[name].update(id(row) for row in rows)
        return directive, text, len(rows)

    def expand(self, page, text):
        """The page as the book has it."""
        def show(found):
            directive, table, count = self.render(page, found[1])
            note = f"{count} rows. [All data]({directive.file})"
            return f'<div class="data-table">\n\n{table}\n{note}\n\n</div>'

        return replace_outside_code(text, BOOK_TABLE, show)

    def refresh(self, page, text):
        """The page with the tables that it keeps written anew."""
        def write(found):
            return f"<!-- table {found[1]} -->\n\n{self.render(page, found[1])[1]}\n<!-- /table -->"

        return replace_outside_code(text, KEPT_TABLE, write)

    def find_hidden(self):
        """Rows of the files read so far that no page shows whole."""
        for name, data in sorted(self.files.items()):
            for label, table in data["tables"].items():
                for number, row in enumerate(table["rows"], 1):
                    if id(row) not in self.shown[name]:
                        yield f"docs/data/{name}: table {label}, row {number}: no page shows it"


def check_pages(docs):
    """What is wrong with the data, the tables that pages keep, and the rows that no page shows."""
    docs = pathlib.Path(docs)
    pages, mistakes = TablesOfPages(docs), []
    for path in sorted(docs.rglob("*.md")):
        page = str(path.relative_to(docs))
        text = path.read_text()
        try:
            pages.expand(page, text)
            if pages.refresh(page, text) != text:
                mistakes.append(f"docs/{page}: a table is not its data's: `scripts/render-tables --write` writes it")
        except DataMistake as mistake:
            mistakes.append(str(mistake))
        if re.search(r"<!-- /?(?:book-)?table\b", BOOK_TABLE.sub("", KEPT_TABLE.sub("", without_code(text)))):
            mistakes.append(f"docs/{page}: a table's comment has no end, or no beginning")
    for path in sorted((docs / "data").glob("*")):
        if path.name not in pages.files:
            mistakes.append(f"docs/data/{path.name}: no page shows it")
        elif path.read_text() != format_data(pages.files[path.name]):
            mistakes.append(f"docs/data/{path.name}: not one row a line: `scripts/render-tables --write` writes it so")
    # A page with a mistake shows nothing.
    return mistakes or list(pages.find_hidden())


def without_code(text):
    lines, fenced = [], False
    for line in text.splitlines():
        if FENCE.match(line.strip()):
            fenced = not fenced
        elif not fenced:
            lines.append(re.sub(r"`[^`]*`", "", line))
    return "\n".join(lines)


def write_pages(docs):
    """Writes the tables that pages keep, and the files of data one row a line. Gives the paths that changed."""
    docs = pathlib.Path(docs)
    pages, changed = TablesOfPages(docs), []
    for path in sorted(docs.rglob("*.md")):
        changed += write_changed(path, pages.refresh(str(path.relative_to(docs)), path.read_text()))
    for path in sorted((docs / "data").glob("*")):
        changed += write_changed(path, format_data(read_data(path, f"docs/data/{path.name}")))
    return changed


def write_changed(path, text):
    if path.read_text() == text:
        return []
    replace_text(path, text)
    return [path]


def replace_text(path, text):
    """A full disk or a signal in between leaves what was there."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    os.replace(new, path)


def format_data(data):
    """JSON with one column and one row a line, so that a change shows as the rows that it changes."""
    head = json.dumps(data["head"], ensure_ascii=False, indent=2).replace("\n", "\n  ")
    lines = ["{", f'  "head": {head},', '  "tables": {']
    for count, (name, table) in enumerate(data["tables"].items(), 1):
        lines.append(f"    {json.dumps(name)}: {{")
        for key in ("columns", "rows"):
            values = ",\n".join("        " + json.dumps(value, ensure_ascii=False) for value in table[key])
            listed = f"[\n{values}\n      ]" if values else "[]"
            lines.append(f'      "{key}": {listed}' + ("," if key == "columns" else ""))
        lines.append("    }" + ("," if count < len(data["tables"]) else ""))
    return "\n".join([*lines, "  }", "}"]) + "\n"


def write_data(path, data):
    """Writes and checks a file of data. If it is one of docs/data, pages get the tables that they keep of it."""
    path = pathlib.Path(path).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Before the check: a measurement of half an hour is not lost by a mistake in one row.
    replace_text(path, format_data(data))
    check_data(data, path.name)
    if path.parent == DOCS / "data":
        write_pages(DOCS)
