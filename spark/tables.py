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


def read(spark, place):
    return spark.table(place) if is_table(place) else spark.read.text(place)


def order(spark, place, key_bytes):
    """How many rows of a sorted table there are, and how many are out of order: within each of its files, and between the files in the order of
    their first keys, since a table has no order of its files."""
    rows = spark.table(place).select(F.col("_file").alias("file"), F.col("_pos").alias("at"), F.substring("value", 1, key_bytes).alias("key"))
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
