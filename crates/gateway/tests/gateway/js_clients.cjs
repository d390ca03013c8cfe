// AWS's client of version 3 and minio-js with their default settings. The first one puts the bucket before the name of the gateway, as long as that is one.

const assert = require("node:assert");
const http = require("node:http");
const { createRequire } = require("node:module");
const { Readable } = require("node:stream");

const [modules, name, port, bucket] = process.argv.slice(2);
const keys = { id: process.env.AWS_ACCESS_KEY_ID, secret: process.env.AWS_SECRET_ACCESS_KEY };
const load = createRequire(`${modules}/package.json`);

// No resolver knows the name, which leads here.
function lookup(_name, options, found) {
  return options.all ? found(null, [{ address: "127.0.0.1", family: 4 }]) : found(null, "127.0.0.1", 4);
}

function piecesOf(bytes) {
  const pieces = [];
  for (let begin = 0; begin < bytes.length; begin += 100_000) pieces.push(bytes.subarray(begin, begin + 100_000));
  return Readable.from(pieces);
}

async function bytesOf(stream) {
  const pieces = [];
  for await (const piece of stream) pieces.push(piece);
  return Buffer.concat(pieces);
}

async function ofAws(long) {
  const { S3Client, ...aws } = load("@aws-sdk/client-s3");
  const { Upload } = load("@aws-sdk/lib-storage");
  const client = new S3Client({
    endpoint: `http://${name}:${port}`,
    region: "us-east-1",
    credentials: { accessKeyId: keys.id, secretAccessKey: keys.secret },
    requestHandler: { httpAgent: new http.Agent({ keepAlive: true, lookup }) },
  });
  const send = (operation, input) => client.send(new aws[`${operation}Command`]({ Bucket: bucket, ...input }));
  const put = await send("PutObject", { Key: "js/a b+c%", Body: "a few bytes", Metadata: { colour: "blue" } });
  const found = await send("GetObject", { Key: "js/a b+c%" });
  assert.equal(await found.Body.transformToString(), "a few bytes");
  assert.deepEqual([found.ETag, found.Metadata.colour], [put.ETag, "blue"]);
  const part = await send("GetObject", { Key: "js/a b+c%", Range: "bytes=-5" });
  assert.deepEqual([await part.Body.transformToString(), part.ContentRange], ["bytes", "bytes 6-10/11"]);
  await assert.rejects(send("GetObject", { Key: "js/a b+c%", IfNoneMatch: put.ETag }), (error) => error.$metadata.httpStatusCode === 304);
  await send("CopyObject", { Key: "js/copy", CopySource: encodeURI(`${bucket}/js/a b`) + "%2Bc%25", IfNoneMatch: "*" });
  await assert.rejects(send("CopyObject", { Key: "js/copy", CopySource: `${bucket}/js/copy`, MetadataDirective: "REPLACE", IfNoneMatch: "*" }), { name: "PreconditionFailed" });
  const upload = new Upload({ client, params: { Bucket: bucket, Key: "js/long", Body: piecesOf(long) } });
  const done = await upload.done();
  assert.equal(done.Location, `http://${bucket}.${name}:${port}/js/long`);
  assert.ok((await bytesOf((await send("GetObject", { Key: "js/long" })).Body)).equals(long));
  const listed = await send("ListObjectsV2", { Prefix: "js/" });
  assert.deepEqual(listed.Contents.map((object) => object.Key), ["js/a b+c%", "js/copy", "js/long"]);
  // A key that begins as a bucket is called stays one.
  await send("PutObject", { Key: `${bucket}/report`, Body: "data" });
  assert.equal(await (await send("GetObject", { Key: `${bucket}/report` })).Body.transformToString(), "data");
  await assert.rejects(send("PutObject", { Bucket: "other", Key: `${bucket}/report`, Body: "data" }), { name: "NoSuchBucket" });
  const objects = [...listed.Contents.map((object) => ({ Key: object.Key })), { Key: `${bucket}/report` }];
  const deleted = await send("DeleteObjects", { Delete: { Objects: objects } });
  assert.equal(deleted.Deleted.length, 4);
}

async function ofMinio(long) {
  const { Client } = load("minio");
  const client = new Client({ endPoint: "127.0.0.1", port: Number(port), useSSL: false, accessKey: keys.id, secretKey: keys.secret });
  assert.ok(await client.bucketExists(bucket));
  await client.putObject(bucket, "minio-js/stream", piecesOf(long.subarray(0, 1000)));
  await client.putObject(bucket, "minio-js/known", long, long.length);
  assert.ok((await bytesOf(await client.getObject(bucket, "minio-js/known"))).equals(long));
  assert.equal((await bytesOf(await client.getPartialObject(bucket, "minio-js/stream", 10, 20))).length, 20);
  assert.equal((await client.statObject(bucket, "minio-js/stream")).size, 1000);
  const names = [];
  for await (const object of client.listObjectsV2(bucket, "minio-js/", true)) names.push(object.name);
  assert.deepEqual(names, ["minio-js/known", "minio-js/stream"]);
  for await (const upload of client.listIncompleteUploads(bucket, "minio-js/", false)) assert.fail(`${upload.key} is unfinished`);
  await client.removeObjects(bucket, names);
  for await (const object of client.listObjectsV2(bucket, "minio-js/", true)) assert.fail(`${object.name} is still there`);
}

async function main() {
  const long = Buffer.alloc(11 << 20, "0123456789abcdef");
  await ofAws(long);
  await ofMinio(long);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
