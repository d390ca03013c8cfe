"""Asks an S3 store that is not ours whether jobs can use it, and takes away what they left there. It reads one JSON object from its standard
input, keys included, so that they are on no command line and in no environment, and prints one. Python's own library is enough for it."""

import base64
import hashlib
import hmac
import http.client
import json
import socket
import ssl
import sys
import time
import urllib.parse
import xml.etree.ElementTree as ElementTree
from email.utils import formatdate

_ANSWER_S = 10.0
_MAX_ANSWER_BYTES = 8 << 20
# A store that goes on listing what was deleted would be asked forever.
_ROUNDS = 1000
_EMPTY = hashlib.sha256(b"").hexdigest()
_STATUS_OF_SUCCESS = range(200, 300)


class Refused(Exception):
    """The store has answered, and not as it should: its status, and its own word for what is wrong."""

    def __init__(self, status, code, hint=""):
        super().__init__(f"{status} {code}".strip())
        self.status, self.code, self.hint = status, code, hint


def _hmac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def _quote(text, safe="-_.~"):
    return urllib.parse.quote(text, safe=safe)


class Unfit(Exception):
    """The bucket can't be used, though the store would let us."""


class Store:
    def __init__(self, told):
        self.told = told
        self.connection = None
        self.answer_s = told.get("answer_s", _ANSWER_S)
        default = 443 if told["https"] else 80
        name = told["host"] if told["path_style"] else f"{told['bucket']}.{told['host']}"
        self.name = name
        self.host = name if told["port"] == default else f"{name}:{told['port']}"

    def request(self, method, key="", query=(), body=b""):
        """One signed request; the body of its answer."""
        bucket = f"/{self.told['bucket']}" if self.told["path_style"] else ""
        # A store knows its bucket by a path that ends with a slash too.
        path = _quote(f"{bucket}/{key}", "/-_.~")
        asked = "&".join(f"{_quote(name)}={_quote(value)}" for name, value in sorted(query))
        sign = self._signed_v2 if self.told["signatures"] == "v2" else self._signed_v4
        headers = sign(method, path, query, asked, body)
        target = f"{path}?{asked}" if asked else path
        try:
            answer, text = self._answer(method, target, body, headers, self.connection is not None)
        except BaseException:
            self.close()
            raise
        if answer.will_close or len(text) == _MAX_ANSWER_BYTES:
            self.close()
        if answer.status not in _STATUS_OF_SUCCESS:
            raise Refused(answer.status, (_code(text) or answer.reason)[:100], (answer.getheader("x-amz-bucket-region") or "")[:40])
        return text

    def _answer(self, method, target, body, headers, again):
        try:
            if self.connection is None:
                self.connection = http.client.HTTPConnection(self.told["host"], self.told["port"], timeout=self.answer_s)
                self.connection.sock = self._connected()
            self.connection.request(method, target, body=body, headers=headers)
            answer = self.connection.getresponse()
            return answer, answer.read(_MAX_ANSWER_BYTES)
        except (http.client.HTTPException, ConnectionError):
            # The store may have closed a connection that was idle.
            self.close()
            if not again:
                raise
            return self._answer(method, target, body, headers, False)

    def close(self):
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()

    def _connected(self):
        plain = socket.create_connection((self.told["address"], self.told["port"]), timeout=self.answer_s)
        if not self.told["https"]:
            return plain
        try:
            # Without a file, whom this machine trusts.
            context = ssl.create_default_context(cafile=self.told.get("authority"))
            return context.wrap_socket(plain, server_hostname=self.name)
        except BaseException:
            plain.close()
            raise

    def _signed_v4(self, method, path, query, asked, body):
        now = time.gmtime()
        at, day = time.strftime("%Y%m%dT%H%M%SZ", now), time.strftime("%Y%m%d", now)
        digest = hashlib.sha256(body).hexdigest() if body else _EMPTY
        headers = {"host": self.host, "x-amz-content-sha256": digest, "x-amz-date": at}
        if self.told["token"]:
            headers["x-amz-security-token"] = self.told["token"]
        names = ";".join(sorted(headers))
        lines = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
        canonical = f"{method}\n{path}\n{asked}\n{lines}\n{names}\n{digest}"
        scope = f"{day}/{self.told['region']}/s3/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{at}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{self.told['secret']}".encode()
        for part in (day, self.told["region"], "s3", "aws4_request"):
            key = _hmac(key, part)
        signature = _hmac(key, text).hex()
        credential = f"Credential={self.told['access']}/{scope}, SignedHeaders={names}, Signature={signature}"
        return {**headers, "Authorization": f"AWS4-HMAC-SHA256 {credential}"}

    def _signed_v2(self, method, path, query, asked, body):
        date = formatdate(usegmt=True)
        headers = {"Host": self.host, "Date": date}
        extra = ""
        if self.told["token"]:
            headers["x-amz-security-token"] = self.told["token"]
            extra = f"x-amz-security-token:{self.told['token']}\n"
        resource = path if self.told["path_style"] else f"/{self.told['bucket']}{path}"
        # Only these change what is asked for.
        special = "&".join(name if not value else f"{name}={value}" for name, value in sorted(query) if name in ("uploads", "uploadId", "versioning"))
        resource = f"{resource}?{special}" if special else resource
        text = f"{method}\n\n\n{date}\n{extra}{resource}"
        digest = hmac.new(self.told["secret"].encode(), text.encode(), hashlib.sha1).digest()
        return {**headers, "Authorization": f"AWS {self.told['access']}:{base64.b64encode(digest).decode()}"}


def _elements(text):
    """The elements of an answer with their names alone: stores differ in the namespace."""
    for element in ElementTree.fromstring(text).iter():
        element.tag = element.tag.rsplit("}", 1)[-1]
        yield element


def _code(text):
    try:
        return next((element.text for element in _elements(text) if element.tag == "Code"), "") or ""
    except ElementTree.ParseError:
        return ""


def _text(element, name):
    return next((part.text or "" for part in element if part.tag == name), "")


def check(store, prefix):
    """That there is the bucket, that it forgets what is deleted, and that the key may list it, write to it and delete from it."""
    store.request("GET", query=[("list-type", "2"), ("max-keys", "1"), ("prefix", prefix)])
    try:
        versions = _elements(store.request("GET", query=[("versioning", "")]))
        if any(element.tag == "Status" and element.text for element in versions):
            raise Unfit("its bucket keeps old versions, which deleting doesn't remove: use a bucket that never had versions")
    except Refused:
        # Not every key may ask this, and not every store knows it.
        pass
    probe = f"{prefix}probe"
    try:
        store.request("PUT", probe, body=b"underlay")
    except Refused:
        raise
    except Exception as error:
        # It may have been carried out all the same.
        _forget(store, probe, error)
        raise
    try:
        store.request("DELETE", probe)
    except Exception as error:
        _forget(store, probe, error)
        raise
    return {}


def _forget(store, probe, why):
    try:
        store.request("DELETE", probe)
    except Exception:
        raise Unfit(f"{why}; '{probe}' may be left in the bucket") from None


def _uploads(store, prefix, asked):
    """Keys and ids of the uploads that begin like `prefix`, from all pages of the list."""
    markers = []
    for _ in range(_ROUNDS):
        listed = list(_elements(store.request("GET", query=[("uploads", ""), ("prefix", asked), *markers])))
        for upload in listed:
            if upload.tag == "Upload" and _text(upload, "Key").startswith(prefix):
                yield _text(upload, "Key"), _text(upload, "UploadId")
        root = listed[0]
        if _text(root, "IsTruncated") != "true":
            return
        markers = [("key-marker", _text(root, "NextKeyMarker")), ("upload-id-marker", _text(root, "NextUploadIdMarker"))]


def clear(store, prefix):
    """Deletes every object whose key begins like this, and every upload that was not completed, until a list has none."""
    deleted = aborted = 0
    for _ in range(_ROUNDS):
        # Some stores list uploads by whole keys alone, and none by a prefix.
        uploads = list(_uploads(store, prefix, prefix)) or list(_uploads(store, prefix, ""))
        for key, upload in uploads:
            _gone(store, key, [("uploadId", upload)])
        aborted += len(uploads)
        listed = list(_elements(store.request("GET", query=[("list-type", "2"), ("prefix", prefix)])))
        keys = [element.text or "" for element in listed if element.tag == "Key"]
        for key in keys:
            if not key.startswith(prefix):
                raise ValueError("the store lists keys that were not asked for")
            _gone(store, key, [])
        deleted += len(keys)
        if not keys and not uploads:
            return {"deleted": deleted, "aborted": aborted}
    raise ValueError("the store goes on listing what was deleted")


def _gone(store, key, query):
    try:
        store.request("DELETE", key, query=query)
    except Refused as refused:
        # Somebody was faster: the store itself, for an upload that was completed.
        if refused.status != 404:
            raise


def main():
    told = json.load(sys.stdin)
    act = {"check": check, "clear": clear}[told["do"]]
    try:
        answer = act(Store(told), told["prefix"])
    except Refused as refused:
        answer = {"status": refused.status, "code": refused.code, "hint": refused.hint}
    except (socket.timeout, TimeoutError):
        answer = {"problem": f"it has not answered within {_ANSWER_S:.0f} s"}
    except ssl.SSLError as error:
        answer = {"problem": f"no TLS with it: {error.reason or error}"}
    except (http.client.HTTPException, ConnectionError):
        answer = {"problem": "it closes connections without an answer"}
    except Exception as error:
        answer = {"problem": (str(error) or type(error).__name__)[:1000]}
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
