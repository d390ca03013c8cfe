// minio-go with its default settings: objects, streams of unknown length, parts, ranges, conditions, copies, signed URLs, forms, listings and deletions.
// Then a few with the bucket before the gateway's name, and checksums behind bodies.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"reflect"
	"sort"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/minio/minio-go/v7/pkg/tags"
)

var background = context.Background()

func check(err error, what string) {
	if err != nil {
		panic(fmt.Sprintf("%s: %v", what, err))
	}
}

func same(what string, found, expected any) {
	if !reflect.DeepEqual(found, expected) {
		panic(fmt.Sprintf("%s: %v instead of %v", what, found, expected))
	}
}

// refused is for errors that the server has to answer.
func refused(what string, err error, code string) {
	var answer minio.ErrorResponse
	if !errors.As(err, &answer) || answer.Code != code {
		panic(fmt.Sprintf("%s: %v instead of %s", what, err, code))
	}
}

type session struct {
	client *minio.Client
	bucket string
	// Whether it sends checksums behind bodies, which it does only on request.
	hasTrailers bool
}

// stream is a reader without a known length, which can't seek.
func stream(data []byte) io.Reader { return io.MultiReader(bytes.NewReader(data)) }

func (s session) put(name string, data []byte, options minio.PutObjectOptions) minio.UploadInfo {
	info, err := s.client.PutObject(background, s.bucket, name, bytes.NewReader(data), int64(len(data)), options)
	check(err, "put "+name)
	return info
}

func (s session) read(name string, options minio.GetObjectOptions) []byte {
	object, err := s.client.GetObject(background, s.bucket, name, options)
	check(err, "get "+name)
	defer object.Close()
	data, err := io.ReadAll(object)
	check(err, "read "+name)
	return data
}

func (s session) names(options minio.ListObjectsOptions) []string {
	names := []string{}
	for object := range s.client.ListObjects(background, s.bucket, options) {
		check(object.Err, "list")
		names = append(names, object.Key)
	}
	return names
}

func (s session) exchange(method, url, kind string, body []byte) (int, []byte) {
	request, err := http.NewRequest(method, url, bytes.NewReader(body))
	check(err, "request")
	if kind != "" {
		request.Header.Set("Content-Type", kind)
	}
	answer, err := http.DefaultClient.Do(request)
	check(err, method)
	defer answer.Body.Close()
	data, err := io.ReadAll(answer.Body)
	check(err, "answer")
	return answer.StatusCode, data
}

// plain objects, with names and metadata of any characters.
func (s session) objects(small []byte) []string {
	exists, err := s.client.BucketExists(background, s.bucket)
	check(err, "bucket")
	same("the bucket", exists, true)
	buckets, err := s.client.ListBuckets(background)
	check(err, "buckets")
	same("buckets", buckets[0].Name, s.bucket)
	names := []string{"minio-go/a name with blanks, + and %", "minio-go/é", "minio-go/small"}
	for _, name := range names {
		options := minio.PutObjectOptions{UserMetadata: map[string]string{"colour": "blue", "town": "Zürich"}, ContentType: "text/plain"}
		put := s.put(name, small, options)
		same(name, s.read(name, minio.GetObjectOptions{}), small)
		found, err := s.client.StatObject(background, s.bucket, name, minio.StatObjectOptions{})
		check(err, "stat "+name)
		same("what it is", []any{found.ETag, found.Size, found.ContentType, found.UserMetadata["Colour"]}, []any{put.ETag, int64(len(small)), "text/plain", "blue"})
		// As S3 gives back what is not ASCII.
		town, err := new(mime.WordDecoder).DecodeHeader(found.UserMetadata["Town"])
		check(err, "town")
		same("town", town, "Zürich")
	}
	return names
}

// parts of files and of streams, and compares all bytes.
func (s session) uploads(directory string, long []byte) {
	// Without a size of parts, it would have half a gigabyte in memory.
	_, err := s.client.PutObject(background, s.bucket, "minio-go/stream", stream(long), -1, minio.PutObjectOptions{PartSize: 5 << 20})
	check(err, "stream")
	same("stream", bytes.Equal(s.read("minio-go/stream", minio.GetObjectOptions{}), long), true)
	file := directory + "/long"
	check(os.WriteFile(file, long, 0o600), "write")
	put, err := s.client.FPutObject(background, s.bucket, "minio-go/file", file, minio.PutObjectOptions{})
	check(err, "file")
	same("parts", put.ETag[32:], "-2")
	check(s.client.FGetObject(background, s.bucket, "minio-go/file", directory+"/back", minio.GetObjectOptions{}), "file")
	back, err := os.ReadFile(directory + "/back")
	check(err, "back")
	same("file", bytes.Equal(back, long), true)
	found, err := s.client.StatObject(background, s.bucket, "minio-go/file", minio.StatObjectOptions{Checksum: true})
	check(err, "stat")
	same("its checksum is there", found.ChecksumCRC32C != "" || found.ChecksumCRC64NVME != "", s.hasTrailers)
	for upload := range s.client.ListIncompleteUploads(background, s.bucket, "minio-go/", true) {
		panic(upload.Key + " is unfinished")
	}
}

func (s session) ranges(long []byte) {
	options := minio.GetObjectOptions{}
	check(options.SetRange(7, 15), "range")
	same("range", s.read("minio-go/stream", options), long[7:16])
	check(options.SetRange(0, -9), "range")
	same("last bytes", s.read("minio-go/stream", options), long[len(long)-9:])
	object, err := s.client.GetObject(background, s.bucket, "minio-go/file", minio.GetObjectOptions{})
	check(err, "get")
	defer object.Close()
	some := make([]byte, 1000)
	_, err = object.ReadAt(some, 6<<20)
	check(err, "read at")
	same("read at", some, long[6<<20:6<<20+1000])
	_, err = object.Seek(-1000, io.SeekEnd)
	check(err, "seek")
	_, err = io.ReadFull(object, some)
	check(err, "read")
	same("the end", some, long[len(long)-1000:])
}

func (s session) conditions(small []byte) {
	only := minio.PutObjectOptions{}
	only.SetMatchETagExcept("*")
	put := s.put("minio-go/once", small, only)
	_, err := s.client.PutObject(background, s.bucket, "minio-go/once", bytes.NewReader(small), int64(len(small)), only)
	refused("a second one", err, "PreconditionFailed")
	that := minio.PutObjectOptions{}
	that.SetMatchETag(put.ETag)
	changed := s.put("minio-go/once", []byte("changed"), that)
	_, err = s.client.PutObject(background, s.bucket, "minio-go/once", bytes.NewReader(small), int64(len(small)), that)
	refused("of another one", err, "PreconditionFailed")
	options := minio.StatObjectOptions{}
	check(options.SetMatchETagExcept(changed.ETag), "option")
	_, err = s.client.StatObject(background, s.bucket, "minio-go/once", options)
	same("not modified", minio.ToErrorResponse(err).StatusCode, http.StatusNotModified)
	_, err = s.client.StatObject(background, s.bucket, "minio-go/missing", minio.StatObjectOptions{})
	refused("a missing one", err, "NoSuchKey")
}

func (s session) copies(small, long []byte, source string) {
	from := minio.CopySrcOptions{Bucket: s.bucket, Object: source}
	_, err := s.client.CopyObject(background, minio.CopyDestOptions{Bucket: s.bucket, Object: "minio-go/copy"}, from)
	check(err, "copy")
	same("copy", s.read("minio-go/copy", minio.GetObjectOptions{}), small)
	to := minio.CopyDestOptions{Bucket: s.bucket, Object: "minio-go/copy", ReplaceMetadata: true, UserMetadata: map[string]string{"colour": "red"}}
	_, err = s.client.CopyObject(background, to, from)
	check(err, "copy")
	found, err := s.client.StatObject(background, s.bucket, "minio-go/copy", minio.StatObjectOptions{})
	check(err, "stat")
	same("colour", found.UserMetadata["Colour"], "red")
	ranged := minio.CopySrcOptions{Bucket: s.bucket, Object: "minio-go/stream", MatchRange: true, Start: 1, End: 6 << 20}
	_, err = s.client.ComposeObject(background, minio.CopyDestOptions{Bucket: s.bucket, Object: "minio-go/composed"}, ranged, from)
	check(err, "compose")
	expected := append(append([]byte{}, long[1:6<<20+1]...), small...)
	same("composed", bytes.Equal(s.read("minio-go/composed", minio.GetObjectOptions{}), expected), true)
	named, err := tags.MapToObjectTags(map[string]string{"a tag": "of any value"})
	check(err, "tags")
	check(s.client.PutObjectTagging(background, s.bucket, "minio-go/copy", named, minio.PutObjectTaggingOptions{}), "put tags")
	read, err := s.client.GetObjectTagging(background, s.bucket, "minio-go/copy", minio.GetObjectTaggingOptions{})
	check(err, "get tags")
	same("tags", read.ToMap(), named.ToMap())
}

func (s session) signed(small []byte) {
	url, err := s.client.PresignedPutObject(background, s.bucket, "minio-go/signed é+", time.Minute)
	check(err, "presign")
	status, _ := s.exchange("PUT", url.String(), "", small)
	same("signed PUT", status, 200)
	url, err = s.client.PresignedGetObject(background, s.bucket, "minio-go/signed é+", time.Minute, map[string][]string{"response-content-type": {"text/x-signed"}})
	check(err, "presign")
	status, data := s.exchange("GET", url.String(), "", nil)
	same("signed GET", []any{status, data}, []any{200, small})
	policy := minio.NewPostPolicy()
	check(policy.SetBucket(s.bucket), "policy")
	check(policy.SetKey("minio-go/form"), "policy")
	check(policy.SetExpires(time.Now().UTC().Add(time.Minute)), "policy")
	check(policy.SetContentLengthRange(1, 1<<20), "policy")
	form, fields, err := s.client.PresignedPostPolicy(background, policy)
	check(err, "form")
	var body bytes.Buffer
	writer := multipart.NewWriter(&body)
	for name, value := range fields {
		check(writer.WriteField(name, value), "field")
	}
	file, err := writer.CreateFormFile("file", "a file")
	check(err, "field")
	_, err = file.Write(small)
	check(err, "field")
	check(writer.Close(), "form")
	status, data = s.exchange("POST", form.String(), writer.FormDataContentType(), body.Bytes())
	same("form "+string(data), status, 204)
	same("form", s.read("minio-go/form", minio.GetObjectOptions{}), small)
}

func (s session) listings(names []string) {
	s.put("minio-go/deep/er/object", nil, minio.PutObjectOptions{})
	expected := append(names, "minio-go/composed", "minio-go/copy", "minio-go/deep/er/object", "minio-go/file", "minio-go/form", "minio-go/once",
		"minio-go/signed é+", "minio-go/stream")
	sort.Strings(expected)
	same("names", s.names(minio.ListObjectsOptions{Prefix: "minio-go/", Recursive: true}), expected)
	same("pages", s.names(minio.ListObjectsOptions{Prefix: "minio-go/", Recursive: true, MaxKeys: 2}), expected)
	same("version 1", s.names(minio.ListObjectsOptions{Prefix: "minio-go/", Recursive: true, UseV1: true, MaxKeys: 3}), expected)
	same("folders", s.names(minio.ListObjectsOptions{Prefix: "minio-go/d"}), []string{"minio-go/deep/"})
	same("behind one", s.names(minio.ListObjectsOptions{Prefix: "minio-go/s", Recursive: true, StartAfter: "minio-go/signed é+"}), []string{"minio-go/small", "minio-go/stream"})
	objects := make(chan minio.ObjectInfo)
	go func() {
		defer close(objects)
		for _, name := range expected {
			objects <- minio.ObjectInfo{Key: name}
		}
	}()
	for failed := range s.client.RemoveObjects(background, s.bucket, objects, minio.RemoveObjectsOptions{}) {
		panic(fmt.Sprintf("%s: %v", failed.ObjectName, failed.Err))
	}
	same("what is left", s.names(minio.ListObjectsOptions{Recursive: true}), []string{})
}

func connect(address string, options minio.Options) *minio.Client {
	options.Creds = credentials.NewEnvAWS()
	client, err := minio.New(address, &options)
	check(err, "client")
	return client
}

func main() {
	address, host, bucket, directory := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	small, long := []byte("a few bytes"), bytes.Repeat([]byte("0123456789abcdef"), 17<<16)
	s := session{connect(address, minio.Options{}), bucket, false}
	names := s.objects(small)
	s.uploads(directory, long)
	s.ranges(long)
	s.conditions(small)
	s.copies(small, long, names[0])
	s.signed(small)
	s.listings(names)

	// No resolver knows the name, which leads to the same address.
	_, port, err := net.SplitHostPort(address)
	check(err, "address")
	transport, err := minio.DefaultTransport(false)
	check(err, "transport")
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	named := session{connect(net.JoinHostPort(host, port), minio.Options{BucketLookup: minio.BucketLookupDNS, TrailingHeaders: true, Transport: transport}), bucket, true}
	named.objects(small)
	named.uploads(directory, long)
	named.copies(small, long, names[0])
	for _, name := range named.names(minio.ListObjectsOptions{Recursive: true}) {
		check(named.client.RemoveObject(background, bucket, name, minio.RemoveObjectOptions{}), "remove")
	}
}
