"""What a job left in the store, told by Hadoop's own clients; and requests of our own to an S3 store."""

import json
import urllib.parse

import store

# Of a bucket that is there already, and is ours.
_CONFLICT = 409
_NOT_FOUND = 404


def _at(spark, path):
    context = spark.sparkContext
    hadoop_path = context._jvm.org.apache.hadoop.fs.Path(path)
    # With the session's own settings, as its writers have them.
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    return hadoop_path.getFileSystem(configuration), hadoop_path


def _client(spark, bucket, authority):
    """A client of the store of S3A's settings, the same for each version of S3A. Its requests have limits of their own."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    setting = lambda name, otherwise="": settings.get(f"fs.s3a.{name}", otherwise)
    endpoint = urllib.parse.urlsplit(setting("endpoint"))
    https = endpoint.scheme == "https"
    return store.Store({
        "bucket": bucket,
        "https": https,
        "host": endpoint.hostname,
        "address": endpoint.hostname,
        "port": endpoint.port or (443 if https else 80),
        "authority": authority,
        "path_style": True,
        "signatures": "v2" if setting("signing-algorithm") == "S3SignerType" else "v4",
        "region": setting("endpoint.region", "us-east-1"),
        "access": setting("access.key"),
        "secret": setting("secret.key"),
        "token": "",
    })


def _ask(spark, method, bucket, key, authority, expected):
    client = _client(spark, bucket, authority)
    try:
        client.request(method, key)
    except store.Refused as refused:
        if refused.status != expected:
            raise
    finally:
        client.close()


def make_bucket(spark, bucket, authority):
    """Makes a bucket, which S3A itself does not."""
    _ask(spark, "PUT", bucket, "", authority, _CONFLICT)


def mark(spark, bucket, key, authority):
    """Asks for a key that is not there, by one request: whoever finds it in the gateway's log has found all earlier ones."""
    _ask(spark, "GET", bucket, key, authority, _NOT_FOUND)


def upload(spark, folder, path):
    """Copies files of this machine to a place that executors on others reach, and returns the place."""
    files, place = _at(spark, path)
    files.mkdirs(place.getParent())
    files.copyFromLocalFile(False, True, spark.sparkContext._jvm.org.apache.hadoop.fs.Path(f"file://{folder}"), place)
    return path


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
