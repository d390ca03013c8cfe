"""Where rows go: files of text that a committer brings into their place, or a table of Apache Iceberg, whose commit is one entry in a catalog. The
name of a place tells which of them it is."""

from pyspark.sql import functions as F
from pyspark.sql.window import Window

_CATALOG = "iceberg."
_NAMESPACE = "iceberg.underlay"


def is_table(place):
    return place.startswith(_CATALOG)


def prepare(spark):
    """Loads the catalog, which has no namespace at first. The store is not asked for anything."""
    spark.sql(f"create namespace if not exists {_NAMESPACE}")


def write(frame, place, folder):
    """Tables go into a folder of their own below `folder`: a catalog's own is that of the session's start, and a cache may have come in between."""
    if is_table(place):
        # As many bytes as the lines of text have, more or less.
        writer = frame.writeTo(place).using("iceberg").tableProperty("write.parquet.compression-codec", "uncompressed")
        writer = writer.tableProperty("location", f"{folder}/{place.rsplit('.', 1)[-1]}")
        writer.createOrReplace()
    else:
        frame.write.mode("overwrite").text(place)


def read(spark, place, options):
    if not is_table(place):
        return spark.read.text(place)
    return _stored(spark, place, options) if "cached" in options else spark.table(place)


def in_store(paths, options):
    """Where the store has what a table names by the address of the cache through which it was written."""
    cached, stored = options["cached"], options["stored"]
    for path in paths:
        if not path.startswith(cached):
            raise ValueError(f"the table names {path}, which is not behind the cache at {cached}")
    return [stored + path[len(cached):] for path in paths]


def _named(spark, place, column):
    return [row[0] for row in spark.table(place).select(column).distinct().collect()]


def _stored(spark, place, options):
    """The rows of a table as the store itself has them, past the cache. What leads to them must be there as well: the table's metadata, and the
    lists of its files."""
    current = spark.table(f"{place}.refs").where("name = 'main'").select("snapshot_id")
    lists = spark.table(f"{place}.snapshots").join(current, "snapshot_id").select("manifest_list").first()
    newest = spark.table(f"{place}.metadata_log_entries").orderBy(F.col("timestamp").desc()).select("file").first()
    leading = [*(lists or []), *(newest or []), *_named(spark, f"{place}.manifests", "path")]
    lengths = spark.read.format("binaryFile").load(in_store(leading, options)).select("length").collect()
    if len(lengths) != len(leading) or not all(row["length"] for row in lengths):
        raise ValueError(f"the store has {len(lengths)} of the {len(leading)} files that lead to the table's data, or some are empty")
    files = in_store(_named(spark, f"{place}.files", "file_path"), options)
    if not files:
        raise ValueError("the table has no files")
    return spark.read.parquet(*files)


def order(spark, place, key_bytes, options):
    """How many rows of a sorted table there are, and how many are out of order: within each of its files, and between the files in the order of
    their first keys, since a table has no order of its files."""
    if "cached" in options:
        rows, file, at = _stored(spark, place, options), "_metadata.file_path", "_metadata.row_index"
    else:
        rows, file, at = spark.table(place), "_file", "_pos"
    rows = rows.select(F.col(file).alias("file"), F.col(at).alias("at"), F.substring("value", 1, key_bytes).alias("key"))
    before = F.lag("key").over(Window.partitionBy("file").orderBy("at"))
    files = rows.withColumn("before", before).groupBy("file").agg(
        F.min("key").alias("first"), F.max("key").alias("last"), F.count("*").alias("rows"),
        F.count(F.when(F.col("key") < F.col("before"), 1)).alias("wrong"),
    ).collect()
    # A file of one key alone comes before the one that goes on from it.
    files = sorted(files, key=lambda file: (file["first"], file["last"]))
    wrong = sum(file["wrong"] for file in files)
    wrong += sum(1 for one, next_one in zip(files, files[1:]) if next_one["first"] < one["last"])
    return {"rows": sum(file["rows"] for file in files), "out_of_order": wrong}


def committed(spark, place, since_s):
    """What the table itself tells of its last commit: that it is this session's, that it is not older than the job, and what it added."""
    none = {"committer": "none", "success_bytes": 0}
    if not spark.catalog.tableExists(place):
        return none
    current = spark.table(f"{place}.refs").where("name = 'main'").select("snapshot_id")
    found = spark.table(f"{place}.snapshots").join(current, "snapshot_id").first()
    summary = found["summary"] if found else {}
    is_ours = summary.get("spark.app.id") == spark.sparkContext.applicationId
    if not is_ours or found["committed_at"].timestamp() < since_s:
        return none
    return {
        "committer": "iceberg",
        "success_bytes": 0,
        "committed_files": int(summary.get("added-data-files", 0)),
        "committed_records": int(summary.get("added-records", 0)),
    }
