"""What applications do with S3, by boto3, against the gateway: boto3_client.py ENDPOINT BUCKET MODE"""

import base64
import datetime
import hashlib
import http.client
import io
import os
import sys
import urllib.error
import urllib.parse
import urllib.request
import zlib

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

endpoint, bucket, mode = sys.argv[1:]


def client(**settings):
    options = dict(s3={"addressing_style": "path"}, retries={"max_attempts": 1})
    options.update(settings.pop("options", {}))
    return boto3.client("s3", endpoint_url=endpoint, config=Config(**options), **settings)


s3 = client()


def fails(code, call, **arguments):
    try:
        call(**arguments)
    except ClientError as error:
        found = error.response["Error"]["Code"]
        status = error.response["ResponseMetadata"]["HTTPStatusCode"]
        assert found == code or str(status) == code, f"expected {code}, found {found} ({status})"
        return error
    raise AssertionError(f"expected {code}, and it succeeded: {arguments}")


def put(key, body=b"", **more):
    return s3.put_object(Bucket=bucket, Key=key, Body=body, **more)


def get(key, **more):
    return s3.get_object(Bucket=bucket, Key=key, **more)


def head(key, **more):
    return s3.head_object(Bucket=bucket, Key=key, **more)


def body(key, **more):
    return get(key, **more)["Body"].read()


def noise(seed, size):
    return hashlib.shake_128(str(seed).encode()).digest(size)


def clear():
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket)
    for page in pages:
        keys = [{"Key": item["Key"]} for item in page.get("Contents", [])]
        if keys:
            assert not s3.delete_objects(Bucket=bucket, Delete={"Objects": keys}).get("Errors")


def objects(etag_is_md5=True):
    # An empty body and one behind it on the same connection: each has its own answer.
    put("marked/")
    assert put("marked/a", b"1")["ETag"] and body("marked/a") == b"1"
    for key in ("marked/", "marked/a"):
        s3.delete_object(Bucket=bucket, Key=key)
    data = noise(1, 300_000)
    answer = put("a/plain", data, ContentType="text/plain", Metadata={"who": "me", "n": "1"}, CacheControl="no-cache")
    if etag_is_md5:
        assert answer["ETag"] == f'"{hashlib.md5(data).hexdigest()}"', answer["ETag"]
    found = get("a/plain")
    assert found["Body"].read() == data
    assert found["ContentType"] == "text/plain" and found["Metadata"] == {"who": "me", "n": "1"}
    assert found["CacheControl"] == "no-cache" and found["ETag"] == answer["ETag"]
    looked = head("a/plain")
    assert looked["ContentLength"] == len(data) and looked["ETag"] == answer["ETag"]
    # Ranges.
    assert body("a/plain", Range="bytes=0-9") == data[:10]
    assert body("a/plain", Range="bytes=65530-131080") == data[65530:131081]
    assert body("a/plain", Range="bytes=-7") == data[-7:]
    assert body("a/plain", Range="bytes=299990-") == data[299990:]
    assert get("a/plain", Range="bytes=0-9")["ContentRange"] == f"bytes 0-9/{len(data)}"
    fails("InvalidRange", get, key="a/plain", Range="bytes=300000-")
    # Conditions.
    etag = answer["ETag"]
    assert body("a/plain", IfMatch=etag) == data
    fails("304", get, key="a/plain", IfNoneMatch=etag)
    fails("412", get, key="a/plain", IfMatch='"other"')
    fails("304", get, key="a/plain", IfModifiedSince=datetime.datetime(2100, 1, 1))
    fails("412", get, key="a/plain", IfUnmodifiedSince=datetime.datetime(2000, 1, 1))
    fails("PreconditionFailed", put, key="a/plain", body=b"x", IfNoneMatch="*")
    put("a/once", b"once", IfNoneMatch="*")
    fails("PreconditionFailed", put, key="a/plain", body=b"x", IfMatch='"other"')
    put("a/once", b"twice", IfMatch=head("a/once")["ETag"])
    assert body("a/once") == b"twice"
    # Names, and empty objects.
    for key in ["dir/", "x//y", "ü/ø?&=+ %41", "a b+c", "../up", "dot/./dot"]:
        put(key, key.encode())
        assert body(key) == key.encode(), key
    put("empty")
    assert body("empty") == b"" and head("empty")["ContentLength"] == 0
    fails("NoSuchKey", get, key="none")
    fails("404", head, key="none")
    # Copies.
    copied = s3.copy_object(Bucket=bucket, Key="b/copy", CopySource={"Bucket": bucket, "Key": "a/plain"})
    assert copied["CopyObjectResult"]["ETag"] == head("b/copy")["ETag"]
    if etag_is_md5:
        assert copied["CopyObjectResult"]["ETag"] == etag
    s3.delete_object(Bucket=bucket, Key="a/plain")
    assert body("b/copy") == data and head("b/copy")["Metadata"] == {"who": "me", "n": "1"}
    s3.copy_object(Bucket=bucket, Key="b/copy", CopySource={"Bucket": bucket, "Key": "b/copy"},
                   MetadataDirective="REPLACE", Metadata={"new": "yes"}, ContentType="text/html")
    assert head("b/copy")["Metadata"] == {"new": "yes"} and body("b/copy") == data
    fails("NoSuchKey", s3.copy_object, Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "none"})
    fails("InvalidRequest", s3.copy_object, Bucket=bucket, Key="b/copy",
          CopySource={"Bucket": bucket, "Key": "b/copy"})
    s3.delete_object(Bucket=bucket, Key="none")
    # Listings.
    for number in range(25):
        put(f"list/{number // 10}/{number:02}", b"x")
    plain = s3.list_objects_v2(Bucket=bucket, Prefix="list/", Delimiter="/")
    assert [item["Prefix"] for item in plain["CommonPrefixes"]] == ["list/0/", "list/1/", "list/2/"]
    assert "Contents" not in plain and plain["KeyCount"] == 3
    for name in ["list_objects", "list_objects_v2"]:
        pages = s3.get_paginator(name).paginate(Bucket=bucket, Prefix="list/", PaginationConfig={"PageSize": 7})
        keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
        assert keys == [f"list/{n // 10}/{n:02}" for n in range(25)], keys
        pages = s3.get_paginator(name).paginate(Bucket=bucket, Prefix="list/", Delimiter="/", PaginationConfig={"PageSize": 1})
        prefixes = [item["Prefix"] for page in pages for item in page.get("CommonPrefixes", [])]
        assert prefixes == ["list/0/", "list/1/", "list/2/"], prefixes
    after = s3.list_objects_v2(Bucket=bucket, Prefix="list/", StartAfter="list/1/15")["Contents"]
    assert [item["Key"] for item in after][0] == "list/1/16"
    # Multipart.
    parts = [noise(2, 5 << 20), noise(3, 6 << 20), noise(4, 1000)]
    whole = b"".join(parts)
    s3.upload_fileobj(io.BytesIO(whole), bucket, "multi/auto",
                      Config=TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20))
    assert body("multi/auto") == whole
    assert "-" in head("multi/auto")["ETag"] or not etag_is_md5
    upload = s3.create_multipart_upload(Bucket=bucket, Key="multi/hand", ContentType="a/b")["UploadId"]
    tags = []
    for number, part in enumerate(parts, 1):
        done = s3.upload_part(Bucket=bucket, Key="multi/hand", UploadId=upload, PartNumber=number, Body=part)
        tags.append({"PartNumber": number, "ETag": done["ETag"]})
    listed = s3.list_parts(Bucket=bucket, Key="multi/hand", UploadId=upload, MaxParts=2)
    assert [part["Size"] for part in listed["Parts"]] == [5 << 20, 6 << 20] and listed["IsTruncated"]
    assert [entry["UploadId"] for entry in s3.list_multipart_uploads(Bucket=bucket)["Uploads"]] == [upload]
    fails("InvalidPart", s3.complete_multipart_upload, Bucket=bucket, Key="multi/hand", UploadId=upload,
          MultipartUpload={"Parts": [{"PartNumber": 9, "ETag": tags[0]["ETag"]}]})
    fails("InvalidPartOrder", s3.complete_multipart_upload, Bucket=bucket, Key="multi/hand", UploadId=upload,
          MultipartUpload={"Parts": [tags[1], tags[0]]})
    fails("EntityTooSmall", s3.complete_multipart_upload, Bucket=bucket, Key="multi/hand", UploadId=upload,
          MultipartUpload={"Parts": [tags[0], tags[2], {"PartNumber": 4, "ETag": s3.upload_part(
              Bucket=bucket, Key="multi/hand", UploadId=upload, PartNumber=4, Body=b"x")["ETag"]}]})
    s3.complete_multipart_upload(Bucket=bucket, Key="multi/hand", UploadId=upload, MultipartUpload={"Parts": tags})
    assert body("multi/hand") == whole and head("multi/hand")["ContentType"] == "a/b"
    fails("NoSuchUpload", s3.upload_part, Bucket=bucket, Key="multi/hand", UploadId=upload, PartNumber=1, Body=b"x")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="multi/copied")["UploadId"]
    source = {"Bucket": bucket, "Key": "multi/hand"}
    pieces = []
    for number, (begin, end) in enumerate([(0, 5_300_000), (5_300_000, len(whole))], 1):
        done = s3.upload_part_copy(Bucket=bucket, Key="multi/copied", UploadId=upload, PartNumber=number,
                                   CopySource=source, CopySourceRange=f"bytes={begin}-{end - 1}")
        pieces.append({"PartNumber": number, "ETag": done["CopyPartResult"]["ETag"]})
    s3.complete_multipart_upload(Bucket=bucket, Key="multi/copied", UploadId=upload, MultipartUpload={"Parts": pieces})
    assert body("multi/copied") == whole
    upload = s3.create_multipart_upload(Bucket=bucket, Key="multi/given-up")["UploadId"]
    s3.upload_part(Bucket=bucket, Key="multi/given-up", UploadId=upload, PartNumber=1, Body=b"x")
    s3.abort_multipart_upload(Bucket=bucket, Key="multi/given-up", UploadId=upload)
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    fails("404", head, key="multi/given-up")
    clear()
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def checksums():
    data = noise(9, 100_000)
    crc32 = base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()
    sha256 = base64.b64encode(hashlib.sha256(data).digest()).decode()
    put("sum/header", data, ChecksumCRC32=crc32)
    assert head("sum/header", ChecksumMode="ENABLED")["ChecksumCRC32"] == crc32
    # boto3 sends this one in a trailer of a chunked body.
    put("sum/sha", data, ChecksumAlgorithm="SHA256")
    assert head("sum/sha", ChecksumMode="ENABLED")["ChecksumSHA256"] == sha256
    assert body("sum/sha", ChecksumMode="ENABLED") == data
    fails("BadDigest", put, key="sum/bad", body=data, ChecksumCRC32="AAAAAA==")
    fails("BadDigest", put, key="sum/bad", body=data, ContentMD5=base64.b64encode(bytes(16)).decode())
    fails("404", head, key="sum/bad")
    put("sum/md5", data, ContentMD5=base64.b64encode(hashlib.md5(data).digest()).decode())
    upload = s3.create_multipart_upload(Bucket=bucket, Key="sum/multi", ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    parts = [noise(10, 5 << 20), noise(11, 77)]
    done = [s3.upload_part(Bucket=bucket, Key="sum/multi", UploadId=upload["UploadId"], PartNumber=n, Body=part,
                           ChecksumAlgorithm="CRC32") for n, part in enumerate(parts, 1)]
    listed = [{"PartNumber": n, "ETag": part["ETag"], "ChecksumCRC32": part["ChecksumCRC32"]} for n, part in enumerate(done, 1)]
    fails("BadDigest", s3.complete_multipart_upload, Bucket=bucket, Key="sum/multi", UploadId=upload["UploadId"],
          MultipartUpload={"Parts": listed}, ChecksumCRC32="AAAAAA==", ChecksumType="FULL_OBJECT")
    answer = s3.complete_multipart_upload(Bucket=bucket, Key="sum/multi", UploadId=upload["UploadId"],
                                          MultipartUpload={"Parts": listed})
    whole = base64.b64encode(zlib.crc32(b"".join(parts)).to_bytes(4, "big")).decode()
    assert answer["ChecksumCRC32"] == whole and answer["ChecksumType"] == "FULL_OBJECT", answer
    assert body("sum/multi", PartNumber=2) == parts[1]
    assert head("sum/multi", PartNumber=1)["PartsCount"] == 2
    attributes = s3.get_object_attributes(Bucket=bucket, Key="sum/multi", ObjectAttributes=["ETag", "ObjectSize", "Checksum"])
    assert attributes["ObjectSize"] == (5 << 20) + 77 and attributes["Checksum"]["ChecksumCRC32"] == whole


def tagging():
    put("tagged", b"x", Tagging="a=1&b=two%20words")
    assert s3.get_object_tagging(Bucket=bucket, Key="tagged")["TagSet"] == [
        {"Key": "a", "Value": "1"}, {"Key": "b", "Value": "two words"}]
    s3.put_object_tagging(Bucket=bucket, Key="tagged", Tagging={"TagSet": [{"Key": "c", "Value": "3"}]})
    assert get("tagged")["TagCount"] == 1
    s3.delete_object_tagging(Bucket=bucket, Key="tagged")
    assert s3.get_object_tagging(Bucket=bucket, Key="tagged")["TagSet"] == []


def access():
    put("signed/ü", b"by the query")
    # Left alone, boto3 signs URLs by version 2 for this region.
    old = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "signed/ü"}, ExpiresIn=60)
    signer = client(options={"signature_version": "s3v4"})
    url = signer.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": "signed/ü"}, ExpiresIn=60)
    assert urllib.request.urlopen(url).read() == b"by the query"
    upload = signer.generate_presigned_url("put_object", Params={"Bucket": bucket, "Key": "signed/put"}, ExpiresIn=60)
    urllib.request.urlopen(urllib.request.Request(upload, data=b"uploaded", method="PUT"))
    assert body("signed/put") == b"uploaded"
    # Who has the URL can't make it another request.
    for name, value in [("x-amz-copy-source", f"/{bucket}/signed/%C3%BC"), ("x-amz-meta-a", "b")]:
        try:
            urllib.request.urlopen(urllib.request.Request(upload, data=b"", headers={name: value}, method="PUT"))
            raise AssertionError("a header that is not signed was taken: " + name)
        except urllib.error.HTTPError as error:
            assert error.code == 403, error.code
    assert body("signed/put") == b"uploaded"
    last = "1" if url[-1] == "0" else "0"
    longer, other = url.replace("Expires=60", "Expires=61"), url.replace("signed", "other")
    # S3 doesn't know version 2 any more, and has a code of its own for it.
    for changed, code in [(old, 400), (longer, 403), (other, 403), (url[:-1] + last, 403)]:
        try:
            urllib.request.urlopen(changed)
            raise AssertionError("a changed URL was taken")
        except urllib.error.HTTPError as error:
            assert error.code == code, (changed, error.code)
    wrong = client(aws_access_key_id=os.environ["AWS_ACCESS_KEY_ID"], aws_secret_access_key="another-secret-altogether")
    fails("SignatureDoesNotMatch", wrong.list_objects_v2, Bucket=bucket)
    unknown = client(aws_access_key_id="NOBODY", aws_secret_access_key="another-secret-altogether")
    fails("InvalidAccessKeyId", unknown.list_objects_v2, Bucket=bucket)
    reader = client(aws_access_key_id="READER", aws_secret_access_key=os.environ["AWS_SECRET_ACCESS_KEY"])
    put("open/a", b"for all")
    assert reader.get_object(Bucket=bucket, Key="open/a")["Body"].read() == b"for all"
    assert len(reader.list_objects_v2(Bucket=bucket, Prefix="open/")["Contents"]) == 1
    fails("AccessDenied", reader.put_object, Bucket=bucket, Key="open/b", Body=b"x")
    fails("AccessDenied", reader.get_object, Bucket=bucket, Key="signed/put")
    fails("AccessDenied", reader.list_objects_v2, Bucket=bucket)
    fails("AccessDenied", reader.copy_object, Bucket=bucket, Key="open/c", CopySource={"Bucket": bucket, "Key": "signed/put"})
    errors = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "open/a", "Size": 1}]})["Errors"]
    assert errors[0]["Code"] == "PreconditionFailed" and body("open/a") == b"for all"
    errors = reader.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "open/a"}]})["Errors"]
    assert errors[0]["Code"] == "AccessDenied" and body("open/a") == b"for all"
    skew()
    bodies()
    chunks()
    forms()


def signed_request(method, key, data, when=None, content_sha=None, headers=None):
    """A signed request with its headers, to be sent by hand."""
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials
    import botocore.auth
    url = f"{endpoint}/{bucket}/{urllib.parse.quote(key)}"
    request = AWSRequest(method=method, url=url, data=data, headers=headers or {})
    credentials = Credentials(os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"])
    class Signer(S3SigV4Auth):
        def payload(self, request):
            return content_sha or hashlib.sha256(data).hexdigest()
    signer = Signer(credentials, "s3", "us-east-1")
    kept = botocore.auth.get_current_datetime if hasattr(botocore.auth, "get_current_datetime") else None
    if when is not None and kept is not None:
        botocore.auth.get_current_datetime = lambda *a, **k: when
    try:
        signer.add_auth(request)
    finally:
        if kept is not None:
            botocore.auth.get_current_datetime = kept
    return request.prepare()


def send(prepared, data, length=None):
    address = urllib.parse.urlparse(endpoint)
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=20)
    target = urllib.parse.urlparse(prepared.url)
    connection.putrequest(prepared.method, target.path, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", address.netloc)
    for name, value in prepared.headers.items():
        if name.lower() not in ("host", "content-length"):
            connection.putheader(name, value if isinstance(value, str) else value.decode())
    connection.putheader("Content-Length", str(length if length is not None else len(data)))
    connection.endheaders()
    connection.send(data)
    if length is not None and length != len(data):
        connection.sock.shutdown(1)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def skew():
    now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
    status, text = send(signed_request("PUT", "skew/now", b"x", when=now), b"x")
    assert status == 200, text
    for hours in (-1, 1):
        prepared = signed_request("PUT", "skew/then", b"x", when=now + datetime.timedelta(hours=hours))
        if prepared.headers["X-Amz-Date"][:11] == now.strftime("%Y%m%dT%H"):
            raise AssertionError("the clock of the signature was not moved")
        status, text = send(prepared, b"x")
        assert status == 403 and "RequestTimeTooSkewed" in text, (status, text)
    fails("404", head, key="skew/then")


def bodies():
    data = b"as it was signed"
    status, text = send(signed_request("PUT", "body/ok", data), data)
    assert status == 200, text
    status, text = send(signed_request("PUT", "body/other", data), b"not what was signed"[:len(data)])
    assert status == 400 and "XAmzContentSHA256Mismatch" in text, (status, text)
    try:
        status, text = send(signed_request("PUT", "body/short", data), data[:5], length=len(data))
        assert status >= 400, (status, text)
    except (http.client.HTTPException, ConnectionError):
        pass  # It hung up, which is an answer too.
    for key in ["body/other", "body/short"]:
        fails("404", head, key=key)


def chunks():
    """Bodies in chunks with a trailer, which say less or more than comes."""
    data = noise(99, 70_000)
    checksum = base64.b64encode(hashlib.sha256(data).digest()).decode()
    kind = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    def framed(size, trailer, announced=None):
        first = b"%x\r\n" % size + data[:size] + b"\r\n" if size else b""
        return first + b"%x\r\n" % (announced if announced is not None else len(data) - size) + data[size:] + b"\r\n0\r\n" + trailer + b"\r\n"
    trailer = b"x-amz-checksum-sha256:" + checksum.encode() + b"\r\n"
    cases = {
        "whole": (framed(40_000, trailer), len(data)),
        "longer-than-said": (framed(40_000, trailer), len(data) - 1),
        "shorter-than-said": (framed(40_000, trailer), len(data) + 1),
        "without-its-trailer": (framed(40_000, b""), len(data)),
        "with-another-checksum": (framed(40_000, trailer.replace(checksum[:4].encode(), b"AAAA")), len(data)),
        "with-a-chunk-without-end": (framed(40_000, trailer, announced=0xFFFFFFFFFFFFFFFF), len(data)),
        "with-a-chunk-that-is-cut": (framed(0, trailer, announced=2 * len(data)), 2 * len(data)),
        "with-no-chunks": (data, len(data)),
    }
    for name, (body_sent, said) in cases.items():
        headers = {"x-amz-decoded-content-length": str(said), "x-amz-trailer": "x-amz-checksum-sha256", "Content-Encoding": "aws-chunked"}
        prepared = signed_request("PUT", "chunks/" + name, body_sent, content_sha=kind, headers=headers)
        try:
            status, text = send(prepared, body_sent)
        except (http.client.HTTPException, ConnectionError):
            status, text = 400, "it hung up"
        if name == "whole":
            assert status == 200 and body("chunks/whole") == data, (status, text)
        else:
            assert 400 <= status < 500, (name, status, text)
            fails("404", head, key="chunks/" + name)


def forms():
    """Uploads by a browser's form, of version 4; test_post_object of Ceph's s3-tests has those of version 2."""
    def send_form(post, data, **changed):
        fields = {**post["fields"], **changed}
        mark = "----mark"
        parts = [f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n' for name, value in fields.items()]
        text = "".join(parts) + f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\nContent-Type: text/plain\r\n\r\n'
        whole = text.encode() + data + f'\r\n--{mark}\r\nContent-Disposition: form-data; name="submit"\r\n\r\nGo\r\n--{mark}--\r\n'.encode()
        request = urllib.request.Request(post["url"], data=whole, headers={"Content-Type": f"multipart/form-data; boundary={mark}"}, method="POST")
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            return error.code
    signer = client(options={"signature_version": "s3v4"})
    post = signer.generate_presigned_post(bucket, "form/${filename}", Conditions=[["content-length-range", 1, 300_000], {"success_action_status": "201"}],
                                      Fields={"success_action_status": "201"})
    data = noise(98, 200_000)
    assert send_form(post, data) == 201
    assert body("form/a.txt") == data and head("form/a.txt")["ContentType"] == "text/plain"
    assert send_form(post, b"") == 400 and send_form(post, noise(97, 300_001)) == 400
    assert send_form(post, b"x", key="elsewhere/a") == 403
    assert send_form(post, b"x", acl="private") == 403
    signature = post["fields"]["x-amz-signature"]
    assert send_form(post, b"x", **{"x-amz-signature": ("1" if signature[0] == "0" else "0") + signature[1:]}) == 403
    late = signer.generate_presigned_post(bucket, "form/late", ExpiresIn=-10)
    assert send_form(late, b"x") == 403
    assert send_form({"url": post["url"], "fields": {"key": "form/unsigned"}}, b"x") == 403
    assert body("form/a.txt") == data
    fails("404", head, key="form/late")


def buckets():
    names = [entry["Name"] for entry in s3.list_buckets()["Buckets"]]
    assert bucket in names, names
    s3.head_bucket(Bucket=bucket)
    fails("404", s3.head_bucket, Bucket="no-such-bucket")
    s3.create_bucket(Bucket="made-here")
    s3.put_object(Bucket="made-here", Key="stays", Body=b"1")
    s3.create_bucket(Bucket="made-here")
    s3.delete_object(Bucket="made-here", Key="stays")
    fails("NotImplemented", s3.create_bucket, Bucket="for-all", ACL="public-read")
    fails("InvalidBucketName", s3.create_bucket, Bucket="a-.b")
    first = s3.list_buckets(MaxBuckets=1)
    second = s3.list_buckets(MaxBuckets=1000, ContinuationToken=first["ContinuationToken"])
    paged = [entry["Name"] for entry in first["Buckets"] + second["Buckets"]]
    assert paged == [entry["Name"] for entry in s3.list_buckets()["Buckets"]] and "ContinuationToken" not in second
    owner = s3.get_bucket_acl(Bucket="made-here")["Owner"]["ID"]
    s3.head_bucket(Bucket="made-here", ExpectedBucketOwner=owner)
    fails("403", s3.head_bucket, Bucket="made-here", ExpectedBucketOwner="111122223333")
    s3.put_bucket_acl(Bucket="made-here", ACL="private")
    fails("NotImplemented", s3.put_bucket_acl, Bucket="made-here", ACL="public-read")
    fails("InvalidRequest", s3.create_bucket, Bucket="not-empty")
    s3.put_object(Bucket="made-here", Key="dir/a", Body=b"1")
    fails("BucketNotEmpty", s3.delete_bucket, Bucket="made-here")
    s3.delete_object(Bucket="made-here", Key="dir/a")
    s3.create_multipart_upload(Bucket="made-here", Key="unfinished")
    s3.delete_bucket(Bucket="made-here")
    fails("404", s3.head_bucket, Bucket="made-here")
    fails("NotImplemented", s3.get_bucket_policy, Bucket=bucket)
    fails("NotImplemented", s3.put_object, Bucket=bucket, Key="enc", Body=b"x", ServerSideEncryption="aws:kms", SSEKMSKeyId="k")
    fails("NotImplemented", s3.put_object, Bucket=bucket, Key="enc", Body=b"x", ServerSideEncryption="AES256")


def everything():
    buckets()
    objects()
    checksums()
    tagging()
    access()
    # A directory can't have a file where it has a directory.
    put("taken/a", b"1")
    fails("InvalidRequest", put, key="taken", body=b"2")
    fails("InvalidRequest", put, key="taken/a/b", body=b"2")
    clear()


def leave():
    for number in range(20):
        put(f"left/{number}", noise(number, 10_000 * number))
    s3.copy_object(Bucket=bucket, Key="left/copy", CopySource={"Bucket": bucket, "Key": "left/7"})
    s3.delete_object(Bucket=bucket, Key="left/7")


def find(prefix="", delete=True):
    for number in range(20):
        if number != 7:
            assert body(f"{prefix}left/{number}") == noise(number, 10_000 * number), number
    assert body(f"{prefix}left/copy") == noise(7, 70_000)
    fails("404", head, key=f"{prefix}left/7")
    if delete:
        clear()


def shared():
    objects(etag_is_md5=False)


if mode == "find-behind":
    find("behind/")
else:
    {"everything": everything, "objects": objects, "shared": shared, "leave": leave, "find": find}[mode]()
print("fine")
