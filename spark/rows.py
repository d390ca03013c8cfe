"""The rows of TeraGen, as lines of text: a key of 10 characters, the number of the row, and filler; 100 bytes with the line's end.

A row depends on its number and the seed alone, so a check that has both can tell what a correct output contains."""

from pyspark.sql import functions as F

import tables

ROW_BYTES = 100
KEY_BYTES = 10
_NUMBER_BYTES = 32
# What is left of the line without its end, the key, the number and two spaces on either side of that.
_FILLER_BYTES = ROW_BYTES - 1 - KEY_BYTES - _NUMBER_BYTES - 4
_HASH_CHARACTERS = 10


def _random(seed, salt):
    """Ten characters that are as good as random: 60 bits of a hash."""
    digest = F.xxhash64(F.col("id"), F.lit(seed), F.lit(salt))
    # Its eight bytes: Spark 4 does not cast a number to them.
    digest = F.unhex(F.lpad(F.hex(digest), 16, "0"))
    return F.substring(F.base64(digest), 1, _HASH_CHARACTERS)


def generated(spark, rows, seed, compressibility, partitions):
    """A frame with the column `value`; `compressibility` is the share of the filler that is the same in every row."""
    random_bytes = round(_FILLER_BYTES * (1.0 - compressibility))
    parts = [_random(seed, salt) for salt in range(1, random_bytes // _HASH_CHARACTERS + 2)]
    constant = F.lit("X" * (_FILLER_BYTES - random_bytes))
    filler = F.concat(F.substring(F.concat(*parts), 1, random_bytes), constant)
    number = F.lpad(F.hex("id"), _NUMBER_BYTES, "0")
    line = F.concat(_random(seed, 0), F.lit("  "), number, F.lit("  "), filler)
    return spark.range(0, rows, 1, partitions).select(line.alias("value"))


def summed(frame):
    """How many rows there are and the sum of their checksums, whatever their order."""
    found = frame.agg(F.count("*").alias("rows"), F.sum(F.crc32(F.col("value").cast("binary"))).alias("sum")).first()
    return {"rows": found["rows"], "checksum": found["sum"] or 0}


def expected(spark, options):
    """What the rows of a data set sum up to, without reading any."""
    rows = options["rows"]
    partitions = max(spark.sparkContext.defaultParallelism, rows // 2_000_000)
    return summed(generated(spark, rows, options["seed"], options["compressibility"], partitions))


def _order(number, records):
    """Of one part of an output: its first and last key, its rows, and how many of them are smaller than the one before."""
    first = last = None
    rows = smaller = 0
    for record in records:
        key = bytes(record[:KEY_BYTES])
        if last is None:
            first = key
        elif key < last:
            smaller += 1
        last = key
        rows += 1
    if rows:
        yield number, first, last, rows, smaller


def _places(records):
    """The file of each part of what is read, and where in it the part begins. A directory of a local file system lists its files in any order, and
    parts are numbered in that order."""
    splits = [part.serializableHadoopSplit().value() for part in records._jrdd.partitions()]
    return [(split.getPath().toString(), split.getStart()) for split in splits]


def order(spark, path, options):
    """How many rows of a sorted output there are, and how many are out of order."""
    if tables.is_table(path):
        return tables.order(spark, path, KEY_BYTES, options)
    # Executors run a part of this file, which needs the other one.
    for source in (__file__, tables.__file__):
        spark.sparkContext.addPyFile(source)
    records = spark.sparkContext.binaryRecords(path, ROW_BYTES)
    places = _places(records)
    parts = sorted(records.mapPartitionsWithIndex(_order).collect(), key=lambda part: places[part[0]])
    rows = sum(part[3] for part in parts)
    wrong = sum(part[4] for part in parts)
    wrong += sum(1 for before, after in zip(parts, parts[1:]) if after[1] < before[2])
    return {"rows": rows, "out_of_order": wrong}
