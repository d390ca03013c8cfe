"""Sorts rows of 100 bytes by their keys, into files that are in order one after the other."""

from pyspark.sql import functions as F

import rows
import tables


def run(spark, options):
    # Of the rows' length: as many parts as requested, even if adaptive execution would choose another number.
    lines = tables.read(spark, options["input"], options)
    key = F.substring("value", 1, rows.KEY_BYTES)
    ordered = lines.repartitionByRange(options["partitions"], key).sortWithinPartitions(key)
    tables.write(ordered, options["output"], options.get("tables"))
    return {}


def verify(spark, options):
    """That the rows are those that were generated, every one of them, and in order. An empty output is not a sorted one."""
    order = rows.order(spark, options["output"], options)
    if order["out_of_order"]:
        raise ValueError(f"{order['out_of_order']} of {order['rows']} rows are out of order")
    found = rows.summed(tables.read(spark, options["output"], options))
    wanted = rows.expected(spark, options)
    if found != wanted or order["rows"] != wanted["rows"]:
        raise ValueError(f"the output has {found['rows']} rows with the checksum {found['checksum']:x}, and the input "
                         f"{wanted['rows']} with {wanted['checksum']:x}")
    return found


if __name__ == "__main__":
    import alone
    alone.main("terasort", run, ["input", "output", "partitions"])
