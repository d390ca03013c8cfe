"""Runs queries that are derived from TPC-DS, whose texts come with Spark's own tests, and holds each answer against DuckDB's."""

import math
import os
import re
import subprocess
import time
import zipfile
from collections import defaultdict
from datetime import date
from decimal import Decimal

import files

TABLES = [
    "call_center", "catalog_page", "catalog_returns", "catalog_sales", "customer", "customer_address",
    "customer_demographics", "date_dim", "household_demographics", "income_band", "inventory", "item", "promotion",
    "reason", "ship_mode", "store", "store_returns", "store_sales", "time_dim", "warehouse", "web_page", "web_returns",
    "web_sales", "web_site",
]
# Of the larger ones; the others are a file each.
_LARGE = {"catalog_returns", "catalog_sales", "inventory", "store_returns", "store_sales", "web_returns", "web_sales"}
# What the generator calls otherwise than the queries: the specification has had both names.
_RENAMED = {"customer": ("c_last_review_date_sk", "c_last_review_date")}
_LIMIT = re.compile(r"\blimit\s+(\d+)\s*;?\s*$", re.IGNORECASE)
_ORDER = re.compile(r"\border\s+by\b", re.IGNORECASE)
_COLUMN = re.compile(r"(?:\w+\.)?(\w+)(?:\s+(?:asc|desc))?", re.IGNORECASE)
# Sums of decimals are exact; averages and quotients differ in their last digits.
_TOLERANCE = 1e-4
_DUCKDB_MEMORY = "200MB"
_SHOWN_CHARACTERS = 200


def text(options, name):
    with zipfile.ZipFile(options["queries"]) as jar:
        return jar.read(f"tpcds/{name}.sql").decode()


def _generate(options):
    """The tables as Parquet in a folder of this machine, whose disk is not the one under test."""
    # Tables of another size are others, even in the same cluster.
    folder = os.path.join(options["local"], f"scale-{options['scale']}")
    done = os.path.join(folder, "complete")
    if not os.path.exists(done):
        os.makedirs(folder, exist_ok=True)
        command = [options["tpcgen"], "tpcds", "parquet", "--scale-factor", str(options["scale"]), "--output-dir", folder, "--overwrite"]
        made = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if made.returncode != 0:
            raise ValueError(f"the data can't be generated: {made.stdout.strip()[-_SHOWN_CHARACTERS:]}")
        open(done, "w").close()
    return folder


def generate(spark, options):
    """Makes the tables and writes them to the store."""
    folder = _generate(options)
    for table in TABLES:
        place = f"file://{_local(folder, table)}"
        if options.get("is_elsewhere"):
            place = files.upload(spark, _local(folder, table), f"{options['output']}-raw/{table}")
        frame = spark.read.parquet(place)
        if table in _RENAMED:
            frame = frame.withColumnRenamed(*_RENAMED[table])
        parts = options["partitions"] if table in _LARGE else 1
        frame.repartition(parts).write.mode("overwrite").parquet(f"{options['output']}/{table}")
    return {}


def _local(folder, table):
    """A table is a file, or a folder of them."""
    path = os.path.join(folder, f"{table}.parquet")
    return path if os.path.exists(path) else os.path.join(folder, table)


def run(spark, options):
    """All queries, one after the other."""
    for table in TABLES:
        spark.read.parquet(f"{options['input']}/{table}").createOrReplaceTempView(table)
    took, answers = {}, {}
    for name in options["names"]:
        began = time.monotonic()
        try:
            rows = spark.sql(text(options, name)).collect()
        except Exception as error:
            error.within = name
            raise
        took[name] = round(time.monotonic() - began, 3)
        answers[name] = [list(map(_plain, row)) for row in rows]
    return {"seconds": took, "answers": answers}


def _plain(value):
    """What JSON can hold. Java's and Python's words for a number are the same for both programs."""
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    return value


def verify(spark, options, result):
    """That each answer has as many rows as DuckDB's, that each of them is one of DuckDB's, and that they are in the same order, as far as the
    query sorts by columns of the answer. Which of equal rows come before a limit is either's choice, so DuckDB answers without it."""
    import duckdb

    folder = _generate(options)
    base = duckdb.connect()
    base.execute(f"set memory_limit = '{_DUCKDB_MEMORY}'; set threads = 1; set temp_directory = '{folder}/duckdb'")
    # Where Spark has them.
    base.execute("set default_null_order = 'nulls_first_on_asc_last_on_desc'")
    for table in TABLES:
        path = _local(folder, table)
        files = path if os.path.isfile(path) else f"{path}/**/*.parquet"
        before, after = _RENAMED.get(table, (None, None))
        columns = f"* exclude ({before}), {before} as {after}" if before else "*"
        base.execute(f"create view {table} as select {columns} from read_parquet('{files}')")
    wrong = []
    for name in options["names"]:
        query = text(options, name).strip()
        limit = _LIMIT.search(query)
        # Spark quotes names by another character.
        unlimited = _LIMIT.sub("", query).replace("`", '"')
        answer = base.execute(unlimited)
        sorted_by = _sorted_by(unlimited, [column[0] for column in answer.description])
        whole = [[_plain(value) for value in row] for row in answer.fetchall()]
        problem = _difference(result["answers"][name], whole, int(limit.group(1)) if limit else None, sorted_by)
        if problem:
            wrong.append(f"{name}: {problem}")
    if wrong:
        raise ValueError(f"{len(wrong)} of {len(options['names'])} answers are not DuckDB's: {'; '.join(wrong)}")
    rows = sum(len(rows) for rows in result["answers"].values())
    if not rows:
        raise ValueError("no query has found a row, which proves nothing: give the job more data")
    return {"queries": len(options["names"]), "rows": rows}


def _sorted_by(query, columns):
    """The places of the columns by which a query sorts its answer, up to the first that is not one."""
    at = [found.end() for found in _ORDER.finditer(query) if _depth(query[found.end():]) == 0]
    if not at:
        return []
    names, places = [column.lower() for column in columns], []
    for item in re.split(r",(?![^(]*\))", query[at[-1]:].strip().rstrip(";")):
        if item.strip().isdigit():
            places.append(int(item) - 1)
            continue
        column = _COLUMN.fullmatch(item.strip())
        # A name that two columns have says nothing.
        if not column or names.count(column.group(1).lower()) != 1:
            break
        places.append(names.index(column.group(1).lower()))
    return places


def _depth(text):
    """How many parentheses a text closes that it has not opened, or the other way round."""
    return text.count("(") - text.count(")")


def _difference(rows, whole, limit, sorted_by=()):
    """What is wrong with an answer; nothing if it is right."""
    wanted = len(whole) if limit is None else min(limit, len(whole))
    if len(rows) != wanted:
        return f"{len(rows)} rows and not {wanted}"
    there = defaultdict(list)
    for row in whole:
        there[_key(row)].append(_numbers(row))
    for row in rows:
        candidates = there[_key(row)]
        numbers = _numbers(row)
        match = next((index for index, other in enumerate(candidates) if _near(numbers, other)), None)
        if match is None:
            return f"the row {str(row)[:_SHOWN_CHARACTERS]} is not in it"
        candidates.pop(match)
    for number, (row, other) in enumerate(zip(rows, whole)):
        for place in sorted_by:
            if not _same(row[place], other[place]):
                return f"row {number + 1} is {str(row)[:_SHOWN_CHARACTERS]}, where {str(other)[:_SHOWN_CHARACTERS]} comes by its order"
            # Of two that differ in their last digits, either may be the smaller one.
            if isinstance(other[place], float):
                break
    return None


def _same(one, other):
    return _key([one]) == _key([other]) and _near(_numbers([one]), _numbers([other]))


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _key(row):
    """Trailing blanks are padding."""
    return tuple("#" if _is_number(value) else value.rstrip() if isinstance(value, str) else value for value in row)


def _numbers(row):
    return [value for value in row if _is_number(value)]


def _near(one, other):
    return all(math.isclose(a, b, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE) for a, b in zip(one, other))
