"""minio-py with its default settings: objects, uploads in parts, streams of unknown length, copies, listings and their deletion."""

import io
import sys

from minio import Minio
from minio.commonconfig import ComposeSource, CopySource
from minio.deleteobjects import DeleteObject
from minio.error import S3Error

endpoint, bucket, key_id, secret = sys.argv[1:5]
client = Minio(endpoint=endpoint, access_key=key_id, secret_key=secret, secure=False)
assert client.bucket_exists(bucket_name=bucket)
assert bucket in [found.name for found in client.list_buckets()]


class Stream(io.BytesIO):
    """Whose length nobody knows."""

    def seekable(self):
        return False


def read(name, **arguments):
    answer = client.get_object(bucket_name=bucket, object_name=name, **arguments)
    try:
        return answer.read()
    finally:
        answer.close()
        answer.release_conn()


small, long = b"a few bytes", bytes(range(256)) * (11 << 12)
names = ["minio/a name with blanks, + and %", "minio/é", "minio/small"]
for name in names:
    client.put_object(bucket_name=bucket, object_name=name, data=io.BytesIO(small), length=len(small), metadata={"colour": "blue"})
    assert read(name) == small
    found = client.stat_object(bucket_name=bucket, object_name=name)
    assert found.size == len(small) and found.metadata["x-amz-meta-colour"] == "blue", found.metadata
client.put_object(bucket_name=bucket, object_name="minio/stream", data=Stream(long), length=-1, part_size=5 << 20)
assert read("minio/stream") == long
assert read("minio/stream", offset=7, length=9) == long[7:16]
client.copy_object(bucket_name=bucket, object_name="minio/copy", source=CopySource(bucket, names[0]))
assert read("minio/copy") == small
client.compose_object(bucket_name=bucket, object_name="minio/composed", sources=[ComposeSource(bucket, "minio/stream"), ComposeSource(bucket, "minio/small")])
assert read("minio/composed") == long + small
listed = [found.object_name for found in client.list_objects(bucket_name=bucket, prefix="minio/", recursive=True)]
assert listed == sorted([*names, "minio/composed", "minio/copy", "minio/stream"], key=str.encode), listed
try:
    client.stat_object(bucket_name=bucket, object_name="minio/missing")
    raise AssertionError("it is not there")
except S3Error as error:
    assert error.code == "NoSuchKey", error.code
errors = client.remove_objects(bucket_name=bucket, delete_object_list=[DeleteObject(name) for name in listed])
assert list(errors) == []
assert list(client.list_objects(bucket_name=bucket, prefix="minio/", recursive=True)) == []
