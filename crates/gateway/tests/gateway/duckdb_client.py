"""DuckDB through the gateway: tables written and read as Parquet and CSV, whole, by column, by range and by glob."""

import importlib.util
import os
import pathlib
import sys

import duckdb

endpoint, bucket = sys.argv[1:]
at = f"s3://{bucket}/duckdb"

db = duckdb.connect()
# The extension is pip's, and nothing is fetched from DuckDB's own server.
db.execute("SET autoinstall_known_extensions = false")
package = pathlib.Path(importlib.util.find_spec("duckdb_extension_httpfs").origin).parent
db.execute(f"LOAD '{package}/extensions/v{duckdb.__version__}/httpfs.duckdb_extension'")
db.execute(
    "CREATE SECRET (TYPE s3, KEY_ID $id, SECRET $secret, REGION 'us-east-1', ENDPOINT $endpoint, URL_STYLE 'path', USE_SSL false)"
    .replace("$id", f"'{os.environ['AWS_ACCESS_KEY_ID']}'")
    .replace("$secret", f"'{os.environ['AWS_SECRET_ACCESS_KEY']}'")
    .replace("$endpoint", f"'{endpoint}'"))


def one(query):
    return db.execute(query).fetchone()


table = "SELECT i, i % 7 AS seventh, 'name ' || i AS name, hash(i) AS noise FROM range(2000000) AS rows(i)"
expected = one(f"SELECT count(*), sum(i), count(DISTINCT name), bit_xor(noise) FROM ({table})")
# Long enough for several parts of an upload.
db.execute(f"COPY ({table}) TO '{at}/whole.parquet' (FORMAT parquet, COMPRESSION uncompressed)")
found = one(f"SELECT count(*), sum(i), count(DISTINCT name), bit_xor(noise) FROM '{at}/whole.parquet'")
assert found == expected, (found, expected)
# One column and a few of its rows: the footer and some ranges.
assert one(f"SELECT count(*) FROM '{at}/whole.parquet'") == (2000000,)
assert one(f"SELECT sum(i) FROM '{at}/whole.parquet' WHERE i BETWEEN 1500000 AND 1500009") == (sum(range(1500000, 1500010)),)
# Many objects, found by listing.
db.execute(f"COPY ({table} LIMIT 100000) TO '{at}/split' (FORMAT parquet, PARTITION_BY (seventh))")
for seventh, count in db.execute(
        f"SELECT seventh, count(*) FROM read_parquet('{at}/split/*/*.parquet', hive_partitioning = true) GROUP BY ALL").fetchall():
    assert count == len(range(int(seventh), 100000, 7)), (seventh, count)
assert len(db.execute(f"SELECT * FROM glob('{at}/split/**')").fetchall()) >= 7
db.execute(f"COPY ({table} LIMIT 1000) TO '{at}/text.csv.gz' (HEADER)")
assert one(f"SELECT count(*), sum(i) FROM '{at}/text.csv.gz'") == (1000, 499500)
# Overwritten, it is the new one at once.
db.execute(f"COPY ({table} LIMIT 10) TO '{at}/whole.parquet' (FORMAT parquet)")
assert one(f"SELECT count(*) FROM '{at}/whole.parquet'") == (10,)
try:
    db.execute(f"SELECT * FROM '{at}/none.parquet'")
    raise AssertionError("an object that is not there was read")
except duckdb.Error as error:
    assert "404" in str(error) or "No files found" in str(error), error
