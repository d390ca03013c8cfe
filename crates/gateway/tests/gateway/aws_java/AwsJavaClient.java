import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.URL;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import software.amazon.awssdk.core.async.AsyncRequestBody;
import software.amazon.awssdk.core.async.AsyncResponseTransformer;
import software.amazon.awssdk.core.async.BlockingInputStreamAsyncRequestBody;
import software.amazon.awssdk.core.sync.RequestBody;
import software.amazon.awssdk.regions.Region;
import software.amazon.awssdk.services.s3.S3AsyncClient;
import software.amazon.awssdk.services.s3.S3Client;
import software.amazon.awssdk.services.s3.model.CommonPrefix;
import software.amazon.awssdk.services.s3.model.GetObjectRequest;
import software.amazon.awssdk.services.s3.model.GetObjectResponse;
import software.amazon.awssdk.services.s3.model.HeadObjectResponse;
import software.amazon.awssdk.services.s3.model.MetadataDirective;
import software.amazon.awssdk.services.s3.model.ObjectAttributes;
import software.amazon.awssdk.services.s3.model.ObjectIdentifier;
import software.amazon.awssdk.services.s3.model.PutObjectResponse;
import software.amazon.awssdk.services.s3.model.S3Exception;
import software.amazon.awssdk.services.s3.model.S3Object;
import software.amazon.awssdk.services.s3.model.Tag;
import software.amazon.awssdk.services.s3.presigner.S3Presigner;
import software.amazon.awssdk.transfer.s3.S3TransferManager;

/**
 * The AWS SDK for Java 2 with its default settings but for the endpoint: the bucket is before the name of the gateway, bodies come in signed
 * chunks with a checksum behind them, and the asynchronous client cuts what is long into parts.
 */
public final class AwsJavaClient {
    private static final byte[] SMALL = "a few bytes".getBytes(StandardCharsets.UTF_8);

    private final S3Client client;
    private final String bucket;
    private final byte[] large = new byte[17 << 20];

    private AwsJavaClient(S3Client client, String bucket) {
        this.client = client;
        this.bucket = bucket;
        for (int index = 0; index < large.length; index++) {
            large[index] = (byte) (index ^ index >> 9);
        }
    }

    public static void main(String[] arguments) throws Exception {
        URI endpoint = URI.create(arguments[0]);
        Path directory = Path.of(arguments[2]);
        try (S3Client client = S3Client.builder().endpointOverride(endpoint).region(Region.US_EAST_1).build()) {
            AwsJavaClient session = new AwsJavaClient(client, arguments[1]);
            session.useObjects();
            session.useConditions();
            session.useCopies();
            session.useSignedUrls(endpoint);
            session.transfer(endpoint, directory);
            session.list();
        }
    }

    private static void same(String what, Object found, Object expected) {
        if (!Objects.deepEquals(found, expected)) {
            throw new AssertionError(what + ": " + found + " instead of " + expected);
        }
    }

    private static void refused(String what, int status, String code, Runnable request) {
        try {
            request.run();
        } catch (S3Exception error) {
            same(what, error.statusCode() + " " + error.awsErrorDetails().errorCode(), status + " " + code);
            return;
        }
        throw new AssertionError(what + " succeeded");
    }

    private PutObjectResponse put(String key, byte[] bytes) {
        return client.putObject(put -> put.bucket(bucket).key(key), RequestBody.fromBytes(bytes));
    }

    private byte[] read(String key) {
        return client.getObjectAsBytes(get -> get.bucket(bucket).key(key)).asByteArray();
    }

    /** Keys of any characters, ranges, attributes, a body whose length is not known, and one that only a supplier of streams has. */
    private void useObjects() {
        client.headBucket(head -> head.bucket(bucket));
        same("buckets", client.listBuckets().buckets().get(0).name(), bucket);
        for (String key : List.of("java/a b+c%", "java/é", bucket + "/report")) {
            PutObjectResponse put = client.putObject(
                    request -> request.bucket(bucket).key(key).contentType("text/plain").metadata(Map.of("colour", "blue")),
                    RequestBody.fromBytes(SMALL));
            same("the checksum of its own accord", put.checksumCRC32() != null, true);
            same(key, read(key), SMALL);
            HeadObjectResponse head = client.headObject(request -> request.bucket(bucket).key(key));
            same("what it is", List.of(head.eTag(), head.contentType(), head.metadata()),
                    List.of(put.eTag(), "text/plain", Map.of("colour", "blue")));
        }
        GetObjectResponse part = client.getObject(get -> get.bucket(bucket).key("java/é").range("bytes=-5")).response();
        same("a range", part.contentRange(), "bytes 6-10/11");
        client.putObject(put -> put.bucket(bucket).key("java/stream"),
                RequestBody.fromContentProvider(() -> new ByteArrayInputStream(SMALL), "text/plain"));
        same("a stream", read("java/stream"), SMALL);
        put("java/empty", new byte[0]);
        same("nothing", read("java/empty"), new byte[0]);
        same("attributes", client.getObjectAttributes(request -> request.bucket(bucket).key("java/é")
                .objectAttributes(ObjectAttributes.E_TAG, ObjectAttributes.OBJECT_SIZE)).objectSize(), 11L);
        client.putObjectTagging(request -> request.bucket(bucket).key("java/é")
                .tagging(tags -> tags.tagSet(Tag.builder().key("a tag").value("of any value").build())));
        same("tags", client.getObjectTagging(request -> request.bucket(bucket).key("java/é")).tagSet().get(0).value(), "of any value");
    }

    private void useConditions() {
        PutObjectResponse once = client.putObject(put -> put.bucket(bucket).key("java/once").ifNoneMatch("*"), RequestBody.fromBytes(SMALL));
        refused("a second one", 412, "PreconditionFailed", () -> client.putObject(
                put -> put.bucket(bucket).key("java/once").ifNoneMatch("*"), RequestBody.fromBytes(SMALL)));
        client.putObject(put -> put.bucket(bucket).key("java/once").ifMatch(once.eTag()), RequestBody.fromString("changed"));
        refused("of another one", 412, "PreconditionFailed", () -> client.putObject(
                put -> put.bucket(bucket).key("java/once").ifMatch(once.eTag()), RequestBody.fromBytes(SMALL)));
        String changed = client.headObject(head -> head.bucket(bucket).key("java/once")).eTag();
        try {
            client.getObject(get -> get.bucket(bucket).key("java/once").ifNoneMatch(changed)).abort();
            throw new AssertionError("it has not been modified");
        } catch (S3Exception error) {
            same("not modified", error.statusCode(), 304);
        }
        refused("a missing one", 404, "NoSuchKey", () -> read("java/missing"));
        refused("a range of nothing", 416, "InvalidRange", () -> client.getObject(get -> get.bucket(bucket).key("java/once").range("bytes=7-")));
        refused("a bucket that is not there", 404, "NoSuchBucket", () -> client.putObject(
                put -> put.bucket("other").key(bucket + "/report"), RequestBody.fromBytes(SMALL)));
    }

    private void useCopies() {
        client.copyObject(copy -> copy.sourceBucket(bucket).sourceKey("java/a b+c%").destinationBucket(bucket).destinationKey("java/copy"));
        same("a copy", read("java/copy"), SMALL);
        client.copyObject(copy -> copy.sourceBucket(bucket).sourceKey("java/é").destinationBucket(bucket).destinationKey("java/copy")
                .metadataDirective(MetadataDirective.REPLACE).metadata(Map.of("colour", "red")));
        same("its colour", client.headObject(head -> head.bucket(bucket).key("java/copy")).metadata().get("colour"), "red");
    }

    private void useSignedUrls(URI endpoint) throws Exception {
        HttpClient plain = HttpClient.newHttpClient();
        try (S3Presigner presigner = S3Presigner.builder().endpointOverride(endpoint).region(Region.US_EAST_1).build()) {
            URL put = presigner.presignPutObject(request -> request.signatureDuration(Duration.ofMinutes(1))
                    .putObjectRequest(object -> object.bucket(bucket).key("java/signed é+"))).url();
            HttpRequest upload = HttpRequest.newBuilder(put.toURI()).PUT(HttpRequest.BodyPublishers.ofByteArray(SMALL)).build();
            HttpResponse<String> stored = plain.send(upload, HttpResponse.BodyHandlers.ofString());
            same(stored.body(), stored.statusCode(), 200);
            URL get = presigner.presignGetObject(request -> request.signatureDuration(Duration.ofMinutes(1))
                    .getObjectRequest(object -> object.bucket(bucket).key("java/signed é+").responseContentType("text/x-signed"))).url();
            HttpResponse<byte[]> found = plain.send(HttpRequest.newBuilder(get.toURI()).build(), HttpResponse.BodyHandlers.ofByteArray());
            same("signed GET", found.body(), SMALL);
            same("its type", found.headers().firstValue("content-type").get(), "text/x-signed");
        }
    }

    /** Parts there, back and from copy to copy, a stream of unknown length, and a tree. */
    private void transfer(URI endpoint, Path directory) throws Exception {
        Path file = directory.resolve("large");
        Files.write(file, large);
        try (S3AsyncClient parts = S3AsyncClient.builder().endpointOverride(endpoint).region(Region.US_EAST_1).multipartEnabled(true).build();
                S3TransferManager manager = S3TransferManager.builder().s3Client(parts).build()) {
            String tag = manager.uploadFile(upload -> upload.source(file).putObjectRequest(put -> put.bucket(bucket).key("java/large")))
                    .completionFuture().join().response().eTag();
            same("it came in parts", tag.matches("\"[0-9a-f]{32}-3\""), true);
            Path back = directory.resolve("back");
            manager.downloadFile(download -> download.destination(back).getObjectRequest(get -> get.bucket(bucket).key("java/large")))
                    .completionFuture().join();
            same("the file", Files.mismatch(file, back), -1L);
            manager.copy(copy -> copy.copyObjectRequest(request -> request.sourceBucket(bucket).sourceKey("java/large")
                    .destinationBucket(bucket).destinationKey("java/large copy"))).completionFuture().join();
            same("the copy", read("java/large copy"), large);
            BlockingInputStreamAsyncRequestBody body = AsyncRequestBody.forBlockingInputStream(null);
            var stored = parts.putObject(put -> put.bucket(bucket).key("java/large stream"), body);
            body.writeInputStream(new ByteArrayInputStream(large));
            stored.join();
            GetObjectRequest get = GetObjectRequest.builder().bucket(bucket).key("java/large stream").build();
            same("the stream", parts.getObject(get, AsyncResponseTransformer.toBytes()).join().asByteArray(), large);
            Path tree = Files.createDirectories(directory.resolve("tree/further down"));
            Files.write(tree.resolve("a name with + and %"), SMALL);
            var there = manager.uploadDirectory(upload -> upload.source(tree.getParent()).bucket(bucket).s3Prefix("java/tree"))
                    .completionFuture().join();
            same("what failed", there.failedTransfers().size(), 0);
            Path returned = directory.resolve("returned");
            manager.downloadDirectory(download -> download.destination(returned).bucket(bucket)
                    .listObjectsV2RequestTransformer(list -> list.prefix("java/tree/"))).completionFuture().join();
            same("the tree", Files.readAllBytes(returned.resolve("further down/a name with + and %")), SMALL);
        }
        byte[] some = client.getObjectAsBytes(get -> get.bucket(bucket).key("java/large").range("bytes=9000000-9000999")).asByteArray();
        same("a range", some, Arrays.copyOfRange(large, 9_000_000, 9_001_000));
    }

    private void list() {
        List<String> expected = new ArrayList<>(List.of("java/a b+c%", "java/copy", "java/empty", "java/large", "java/large copy",
                "java/large stream", "java/once", "java/signed é+", "java/stream", "java/tree/further down/a name with + and %", "java/é"));
        List<String> keys = new ArrayList<>();
        client.listObjectsV2Paginator(list -> list.bucket(bucket).prefix("java/").maxKeys(3)).contents().stream().map(S3Object::key)
                .forEach(keys::add);
        same("keys", keys, expected);
        List<String> folders = new ArrayList<>();
        client.listObjectsV2Paginator(list -> list.bucket(bucket).prefix("java/t").delimiter("/")).commonPrefixes().stream()
                .map(CommonPrefix::prefix).forEach(folders::add);
        same("folders", folders, List.of("java/tree/"));
        same("uploads", client.listMultipartUploads(list -> list.bucket(bucket)).uploads().size(), 0);
        expected.add(bucket + "/report");
        var gone = client.deleteObjects(delete -> delete.bucket(bucket).delete(documents -> documents
                .objects(expected.stream().map(key -> ObjectIdentifier.builder().key(key).build()).toList())));
        same("deleted", gone.deleted().size(), expected.size());
        same("what is left", client.listObjectsV2(list -> list.bucket(bucket)).keyCount(), 0);
    }
}
