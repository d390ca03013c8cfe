"""Runs one job by itself, with the configured Spark (SPARK_CONF_DIR, or --master): `python terasort.py --rows 1000000 ...`"""

import argparse
import json
import sys
import time

from pyspark.sql import SparkSession

_ARGUMENTS = {
    "input": (str, "where it reads: any URL that Spark knows"),
    "output": (str, "where it writes: what is there is replaced"),
    "rows": (int, "rows of 100 bytes"),
    "points": (int, "points to group"),
    "partitions": (int, "parts of the output"),
    "seed": (int, "of what is generated"),
    "compressibility": (float, "share of a row's filler that repeats, 0 to 1"),
    "query": (str, "one of the queries, such as q3"),
}
_DEFAULTS = {"partitions": 2, "seed": 1, "compressibility": 0.5}


def main(name, job, names):
    parser = argparse.ArgumentParser(prog=name, description=sys.modules[job.__module__].__doc__)
    parser.add_argument("--master", help="of Spark; by default what its configuration says, or this machine")
    for key in names:
        kind, text = _ARGUMENTS[key]
        parser.add_argument(f"--{key}", type=kind, help=text, default=_DEFAULTS.get(key), required=key not in _DEFAULTS)
    options = vars(parser.parse_args())
    builder = SparkSession.builder.appName(name)
    master = options.pop("master")
    spark = (builder.master(master) if master else builder).getOrCreate()
    began = time.monotonic()
    result = job(spark, options)
    print(json.dumps({"job": name, "seconds": round(time.monotonic() - began, 3), **result}))
    spark.stop()
