"""What a job left in the store, told by Hadoop's own clients."""

import json


def _at(spark, path):
    context = spark.sparkContext
    hadoop_path = context._jvm.org.apache.hadoop.fs.Path(path)
    # With the session's own settings, as its writers have them.
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    return hadoop_path.getFileSystem(configuration), hadoop_path


def make_bucket(spark, bucket):
    """Makes a bucket, which S3A itself does not."""
    files, _ = _at(spark, f"s3a://{bucket}/")
    client = files.getAmazonS3ClientForTesting("a new store has no bucket")
    if not client.doesBucketExistV2(bucket):
        client.createBucket(bucket)


def mark(spark, bucket, key):
    """Asks for a key that is not there, by one request: whoever finds it in the gateway's log has found all earlier ones."""
    files, _ = _at(spark, f"s3a://{bucket}/")
    files.getAmazonS3ClientForTesting("to mark the log").doesObjectExist(bucket, key)


def delete(spark, path):
    files, place = _at(spark, path)
    return files.delete(place, True)


def committed(spark, path):
    """Which committer an output came from, by the file that it left: S3A's own committers write JSON there, with their name, and
    Hadoop's leave it empty."""
    files, place = _at(spark, path + "/_SUCCESS")
    if not files.exists(place):
        return {"committer": "none", "success_bytes": 0}
    length = files.getFileStatus(place).getLen()
    if length == 0:
        # Both of Hadoop's leave the same: which of them it was follows from the setting that they read, in force here and now.
        configuration = spark._jsparkSession.sessionState().newHadoopConf()
        version = configuration.get("mapreduce.fileoutputcommitter.algorithm.version", "unset")
        return {"committer": f"file-v{version}", "success_bytes": 0}
    stream = files.open(place)
    try:
        text = spark.sparkContext._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
    finally:
        stream.close()
    success = json.loads(text)
    return {
        "committer": success.get("committer", "unknown"),
        "success_bytes": length,
        "committed_files": len(success.get("filenames", [])),
    }


def data_bytes(spark, path):
    """The bytes of an output's files, and how many they are; without markers such as `_SUCCESS`."""
    files, place = _at(spark, path)
    if not files.exists(place):
        return {"files": 0, "bytes": 0}
    found = [each for each in files.listStatus(place) if each.isFile() and not each.getPath().getName().startswith("_")]
    return {"files": len(found), "bytes": sum(each.getLen() for each in found)}


def unstored(spark, path):
    """The files below a path of Alluxio's that its store does not have yet, and their bytes."""
    files, place = _at(spark, path)
    found, folders = {"files": 0, "bytes": 0}, [place]
    while folders:
        for each in files.listStatus(folders.pop()):
            if each.isDirectory():
                folders.append(each.getPath())
            elif not each.getUriStatus().isPersisted():
                found["files"] += 1
                found["bytes"] += each.getLen()
    return found
