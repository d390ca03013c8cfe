"""Writes rows of 100 bytes."""

import rows
import tables


def run(spark, options):
    frame = rows.generated(
        spark, options["rows"], options["seed"], options["compressibility"], options["partitions"]
    )
    tables.write(frame, options["output"], options.get("tables"))
    return {}


def verify(spark, options):
    """That every row is there, as it was generated."""
    found = rows.summed(tables.read(spark, options["output"], options))
    wanted = rows.expected(spark, options)
    if found != wanted:
        raise ValueError(f"wrote {found['rows']} rows with the checksum {found['checksum']:x}, not "
                         f"{wanted['rows']} with {wanted['checksum']:x}")
    return found


if __name__ == "__main__":
    import alone
    alone.main("teragen", run, ["output", "rows", "partitions", "seed", "compressibility"])
