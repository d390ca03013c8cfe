"""Groups points by K-means, whose true centres are known."""

import math

from pyspark.ml.clustering import KMeans
from pyspark.ml.feature import VectorAssembler
from pyspark.sql import functions as F

DIMENSIONS = 20
CLUSTERS = 8
POINT_BYTES = 8 * DIMENSIONS
# Of the points around their centre. Centres differ by 100 in each dimension that they differ in at all.
_SPREAD = 1.0
_STEP = 100.0
_ITERATIONS = 10


def centres():
    """The corners of a cube, by the digits of their numbers: no two are closer than a step."""
    return [[_STEP * ((number >> (dimension % 3)) & 1) for dimension in range(DIMENSIONS)] for number in range(CLUSTERS)]


def generate(spark, options):
    """Writes the points, a column for each dimension."""
    number = F.pmod(F.col("id"), F.lit(CLUSTERS))
    columns = []
    for dimension in range(DIMENSIONS):
        bit = F.shiftright(number.cast("int"), dimension % 3).bitwiseAND(F.lit(1))
        noise = F.randn(options["seed"] * DIMENSIONS + dimension) * _SPREAD
        columns.append((bit * _STEP + noise).alias(f"x{dimension}"))
    points = spark.range(0, options["points"], 1, options["partitions"]).select(*columns)
    points.write.mode("overwrite").parquet(options["output"])
    return {}


def run(spark, options):
    points = spark.read.parquet(options["input"])
    assembler = VectorAssembler(inputCols=[f"x{dimension}" for dimension in range(DIMENSIONS)], outputCol="features")
    features = assembler.transform(points).select("features")
    means = KMeans(k=CLUSTERS, maxIter=_ITERATIONS, tol=0.0, seed=options["seed"], initSteps=5)
    model = means.fit(features)
    found = [[float(value) for value in centre] for centre in model.clusterCenters()]
    return {"centres": found, "points": int(sum(model.summary.clusterSizes)), "iterations": model.summary.numIter}


def verify(spark, options, result):
    """That each true centre has been found, as exactly as so many points allow, and that no point is missing."""
    if result["points"] != options["points"]:
        raise ValueError(f"{result['points']} points were grouped, not {options['points']}")
    # Six standard errors of a mean over a cluster's points.
    allowed = 6.0 * _SPREAD / math.sqrt(max(1, options["points"] // CLUSTERS))
    for number, centre in enumerate(centres()):
        nearest = min(max(abs(a - b) for a, b in zip(centre, found)) for found in result["centres"])
        if nearest > allowed:
            raise ValueError(f"the centre {number} was missed: the nearest one found is {nearest:.3g} away, "
                             f"where {allowed:.3g} is what chance allows")
    return {"points": result["points"]}


if __name__ == "__main__":
    import alone
    alone.main("kmeans", run, ["input", "seed"])
