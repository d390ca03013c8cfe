"""What a job left in the store, told by Hadoop's own clients; and requests of our own to an S3 store."""

import http.client
import json
import time
import urllib.parse

import store

# A cluster that ends its executors within these leaves nothing.
_LOOKS = 15
_LOOK_S = 2.0
# Of what a request may take altogether, one attempt's share.
_ATTEMPTS = 3
# Of a bucket that is there already, and is ours.
_CONFLICT = 409
_NOT_FOUND = 404
# From here on it is no fault of the request.
_SERVERS_OWN = 500


def _at(spark, path):
    context = spark.sparkContext
    hadoop_path = context._jvm.org.apache.hadoop.fs.Path(path)
    # With the session's own settings, as its writers have them.
    configuration = spark._jsparkSession.sessionState().newHadoopConf()
    return hadoop_path.getFileSystem(configuration), hadoop_path


def _client(spark, bucket, authority, limit_s):
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
        "answer_s": limit_s / _ATTEMPTS,
        "path_style": True,
        "signatures": "v2" if setting("signing-algorithm") == "S3SignerType" else "v4",
        "region": setting("endpoint.region", "us-east-1"),
        "access": setting("access.key"),
        "secret": setting("secret.key"),
        "token": "",
    })


def _ask(spark, request, method, key, expected):
    """One request, which may be repeated: a store that is busy with a job answers late, or closes a connection."""
    for attempt in range(1, _ATTEMPTS + 1):
        client = _client(spark, request["bucket"], request["authority"], request["limit_s"])
        try:
            client.request(method, key)
            return
        except store.Refused as refused:
            if refused.status == expected:
                return
            if refused.status < _SERVERS_OWN or attempt == _ATTEMPTS:
                raise
        except (http.client.HTTPException, OSError):
            if attempt == _ATTEMPTS:
                raise
        finally:
            client.close()


def make_bucket(spark, request):
    """Makes a bucket, which S3A itself does not."""
    _ask(spark, request, "PUT", "", _CONFLICT)


def mark(spark, request):
    """Asks for a key that is not there: a reader that finds it in the gateway's log has found all earlier requests."""
    _ask(spark, request, "GET", request["key"], _NOT_FOUND)


def upload(spark, folder, path):
    """Copies files of this machine to a place that executors on others reach, and returns the place."""
    files, place = _at(spark, path)
    files.mkdirs(place.getParent())
    files.copyFromLocalFile(False, True, spark.sparkContext._jvm.org.apache.hadoop.fs.Path(f"file://{folder}"), place)
    return path


def delete(spark, path):
    files, place = _at(spark, path)
    return files.delete(place, True)


def leave(spark, path):
    """Ends the session, and then deletes what its jobs wrote: tasks of a job that was cancelled may have written until then."""
    files, place = _at(spark, path)
    spark.stop()
    for _ in range(_LOOKS):
        files.delete(place, True)
        # Executors end a moment after the session, each by itself.
        time.sleep(_LOOK_S)
        if not files.exists(place):
            return
    raise ValueError("it is there again after it was deleted: something still writes to it")


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
