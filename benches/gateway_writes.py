"""Writes through the S3 gateway, beside the store itself and Alluxio: PUTs, and a rename and a commit of many objects
as Hadoop's S3A client does them. `benches/gateway` runs this, and hands itself over as `bench`.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

CASES = [
    ("4 KiB, one writer", dict(size=4 << 10, connections=1)),
    ("4 KiB, 16 writers", dict(size=4 << 10, connections=16)),
    ("100 KiB, 16 writers", dict(size=100 << 10, connections=16)),
    ("1 MiB, 8 writers", dict(size=1 << 20, connections=8)),
]
FILE_BYTES = 4 << 10
# Of the disk's own `fdatasync`.
SYNCS = 200
# What is not stored by then is no longer waited for.
STORED_IN_S = 120
# Alluxio takes hours for as many files as the others, and 20 minutes for a round: it has one, and waits shorter.
ALLUXIO_FILES = 1000
ALLUXIO_STORED_IN_S = 20
BACK, THROUGH, STORE = "underlay-gateway, write-back", "underlay-gateway, write-through", "the store itself"
ALLUXIO_TYPES = {"CACHE_THROUGH": "Alluxio, CACHE_THROUGH", "ASYNC_THROUGH": "Alluxio, ASYNC_THROUGH"}
OWN_RENAME = "Alluxio, its own rename of the directory"


class Subject:
    """Whom writes are sent to, with the settings that tell the client how its keys are written."""

    def __init__(self, bench, address, servers, keys=None, stored=None):
        self.bench, self.address, self.servers = bench, address, servers
        root = f"/{bench.BUCKET}"
        self.keys = keys or dict(root=root, copy_root=root, base="w/")
        # How many names the store has yet to get.
        self.unstored = stored or (lambda: pending(bench, address))

    def below(self, name, end):
        """What the keys of a directory begin with."""
        # Alluxio makes an object of each directory, and a directory as the store takes no such object.
        return f"{name}/{end}/" if self.keys["base"] else f"{name}-{end}-"

    def client(self, word, **settings):
        return self.bench.client(word, self.address, **self.keys, **settings)

    def wait_until_stored(self):
        """Whether the store has everything in time."""
        until = time.monotonic() + (ALLUXIO_STORED_IN_S if isinstance(self.unstored, Stored) else STORED_IN_S)
        while time.monotonic() < until:
            if self.unstored() == 0:
                return True
            time.sleep(0.05)
        return False


def pending(bench, address):
    port, token = bench.admins[address]
    headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(asked, timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("underlay_gateway_pending_objects "):
                return float(line.split()[1])
    raise RuntimeError("the gateway does not say how many objects wait for the store")


class Stored:
    """Counts what the store's directory has below a prefix, for servers that do not tell."""

    def __init__(self, directory):
        self.directory, self.expected = directory, 0

    def __call__(self):
        found = sum(len(files) for _, _, files in os.walk(self.directory))
        return max(self.expected - found, 0)


def subjects(bench, folder, missing):
    """Near the store, and with a line of 15 ms between."""
    (folder / "objects").mkdir()
    (folder / "alone-objects").mkdir()
    store, *_ = bench.gateway(folder, "store", bench.CLIENT_CORE, f"{folder}/objects")
    alone = bench.gateway(folder, "alone", bench.SERVER_CORE, f"{folder}/alone-objects")
    line, log = bench.port(), open(folder / "line.log", "w")
    relay = [bench.load, "relay", f"listen=127.0.0.1:{line}", f"to={store}", f"delay_us={bench.DELAY_US}"]
    bench.wait_for(line, bench.start(relay, None, log), log)
    far = f"127.0.0.1:{line}"

    def front(name, behind, write):
        return Subject(bench, *bench.gateway(folder, name, bench.SERVER_CORE, behind, write, f"/{name}")[:2])

    near_by = {BACK: front("back", store, "back"), THROUGH: front("through", store, "through"),
               STORE: Subject(bench, alone[0], alone[1])}
    far_away = {BACK: front("far-back", far, "back"), THROUGH: front("far-through", far, "through"),
                STORE: Subject(bench, far, [], stored=lambda: 0)}
    if bench.options.alluxio:
        try:
            near_by |= alluxio(bench, folder, store)
        except (RuntimeError, SystemExit, OSError) as error:
            missing.append(f"Alluxio's writes: {error}")
    return near_by, far_away


def alluxio(bench, folder, store):
    # Alluxio takes this directory for a bucket.
    seed = dict(root=f"/{bench.BUCKET}", base="alluxio/w/", copy_root="", size=1, objects=1)
    bench.client("fill", store, **seed, **{"from": "seed-"})
    renamed = [own_directory(0, write_type) for write_type in ALLUXIO_TYPES]
    for directory in renamed:
        bench.client("fill", store, **seed, **{"from": f"{directory}/tmp/seed-"})
    keys = dict(root="/api/v1/s3/w", copy_root="/w", base="")
    found = {}
    for write_type, (address, servers) in bench.alluxio(folder, store, "/alluxio", list(ALLUXIO_TYPES)).items():
        counted = Stored(folder / "objects/alluxio")
        counted.expected = 1 + len(renamed)
        found[ALLUXIO_TYPES[write_type]] = Subject(bench, address, servers, keys, counted)
    # They have one store.
    for subject in found.values():
        subject.unstored = counted
    return found


def expect(subject, more):
    """Tells who counts names in the store how many there will be."""
    if isinstance(subject.unstored, Stored):
        subject.unstored.expected += more


def own_directory(number, write_type):
    return f"own-{number}-{write_type[:5].lower()}"


def used_s(bench, subject, before):
    """CPU time since then, and never nothing: the kernel counts in hundredths."""
    return max(bench.cpu_s(subject.servers) - before, 1 / os.sysconf("SC_CLK_TCK"))


def put(bench, subject, prefix, settings):
    before = bench.cpu_s(subject.servers)
    figures = subject.client("write", ms=bench.options.ms, prefix=prefix, **settings)
    acknowledged_s = used_s(bench, subject, before)
    expect(subject, figures["requests"])
    is_stored = subject.wait_until_stored()
    stored_s = used_s(bench, subject, before)
    figures["per_s"] = figures["requests"] / figures["seconds"]
    figures["bytes_per_s"] = figures["bytes"] / figures["seconds"]
    if subject.servers:
        figures["cores"] = acknowledged_s / figures["seconds"]
        figures["per_core"] = figures["requests"] / acknowledged_s
        if is_stored:
            figures["stored_per_core"] = figures["requests"] / stored_s
    return figures


def rename(bench, subject, name, objects):
    ends = {"from": subject.below(name, "tmp"), "to": subject.below(name, "out")}
    subject.client("fill", objects=objects, size=FILE_BYTES, **{"from": ends["from"]})
    expect(subject, objects)
    was_stored = subject.wait_until_stored()
    before, begun = bench.cpu_s(subject.servers), time.monotonic()
    figures = subject.client("rename", objects=objects, **ends)
    return followed(bench, subject, figures, before, begun, was_stored)


def followed(bench, subject, figures, before, begun, was_stored=True):
    """With the CPU time so far, and how long it takes until the store has it."""
    if subject.servers:
        figures["cpu_s"] = used_s(bench, subject, before)
    # Old names and new ones look alike to who counts them.
    if not isinstance(subject.unstored, Stored) and subject.wait_until_stored() and was_stored:
        figures["stored_s"] = time.monotonic() - begun
    return figures


def rename_directory(bench, subject, name, objects):
    """By Alluxio's own request, which its client for Hadoop makes as well."""
    subject.client("fill", objects=objects, size=FILE_BYTES, **{"from": f"{name}/tmp/"})
    expect(subject, objects)
    subject.wait_until_stored()
    paths = [urllib.parse.quote(f"/w/{name}/{end}", safe="") for end in ("tmp", "out")]
    url = f"http://{subject.address}/api/v1/paths/{paths[0]}/rename?dst={paths[1]}"
    before, begun = bench.cpu_s(subject.servers), time.monotonic()
    asked = urllib.request.Request(url, data=b"{}", headers={"Content-Type": "application/json"}, method="POST")
    try:
        with urllib.request.urlopen(asked, timeout=600) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"it answered {error.code}: {error.read()[:200]}") from error
    return {"objects": objects, "seconds": time.monotonic() - begun, "cpu_s": used_s(bench, subject, before)}


def commit(bench, subject, name, objects):
    pairs = {"address": subject.address, "host": bench.HOST, "bucket": bench.BUCKET, "key": bench.KEY, **subject.keys,
             "size": FILE_BYTES, "objects": objects, "to": subject.below(name, "job")}
    settings = [f"{key}={value}" for key, value in pairs.items()]
    command = ["taskset", "-c", str(bench.CLIENT_CORE), str(bench.load), "commit", *settings]
    with subprocess.Popen(command, env=bench.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as process:
        # The parts have been uploaded: what comes now is the commit.
        ready = process.stdout.readline()
        before, begun = bench.cpu_s(subject.servers), time.monotonic()
        out, err = process.communicate("\n")
    if process.returncode != 0 or ready != "ready\n":
        raise RuntimeError(bench.describe_failure("commit", err))
    expect(subject, objects)
    return followed(bench, subject, json.loads(out), before, begun)


def attempt(found, missing, place, name, work):
    """Puts the figures in their place. Who fails once is left out, and the page says so."""
    rounds = found.setdefault(place, {}).setdefault(name, [])
    if rounds is None:
        return
    try:
        rounds.append(work())
    except (RuntimeError, OSError) as error:
        missing.append(f"{name}, {place}: {error}")
        found[place][name] = None


def measure(bench, missing):
    """Everything, in rounds that measure each subject in turn. Returns what the disk is, and the figures."""
    parent = pathlib.Path(bench.options.disk)
    parent.mkdir(parents=True, exist_ok=True)
    folder = bench.temporary(parent)
    asked = ["findmnt", "-no", "FSTYPE,SOURCE,OPTIONS", "-T", str(folder)]
    disk = " ".join(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split())
    near_by, far_away = subjects(bench, folder, missing)
    places = [("", near_by), (", the store 15 ms away", far_away)]
    found, syncs = {}, []
    for number in range(bench.options.write_rounds):
        print(f"writes, round {number + 1} of {bench.options.write_rounds}", file=sys.stderr, flush=True)
        if number > 0:
            near_by = {name: subject for name, subject in near_by.items() if not name.startswith("Alluxio")}
            places[0] = ("", near_by)
        settings = dict(file=folder / f"synced-{number}", count=SYNCS)
        syncs.append(bench.client("sync", "none", **settings))
        for case, settings in CASES:
            for place, those in places:
                for name, subject in those.items():
                    prefix = f"put-{number}-{case.replace(' ', '-').replace(',', '')}-"
                    attempt(found, missing, f"PUT of {case}{place}", name,
                            lambda: put(bench, subject, prefix, settings))
        for place, those in places:
            for name, subject in those.items():
                objects = bench.options.files
                objects = min(objects, ALLUXIO_FILES) if name.startswith("Alluxio") else objects
                attempt(found, missing, f"Rename{place}", name, lambda: rename(bench, subject, f"r{number}", objects))
                attempt(found, missing, f"Commit{place}", name, lambda: commit(bench, subject, f"c{number}", objects))
        for write_type, name in ALLUXIO_TYPES.items():
            if name in near_by:
                directory = own_directory(number, write_type)
                attempt(found, missing, "Rename", f"{OWN_RENAME} ({write_type})",
                        lambda: rename_directory(bench, near_by[name], directory, ALLUXIO_FILES))
    bench.end_all()
    return {"disk": disk, "syncs": syncs, "found": found}


def cell(bench, rounds, name, scale=1.0, digits=0):
    return bench.spread(rounds, name, scale, digits) if all(name in figures for figures in rounds) else ""


def show_rate(per_s):
    return f"{per_s:,.0f}" if per_s >= 10 else f"{per_s:.2g}"


def glance(bench, measured):
    """Every row below, with all subjects side by side: none has a goal."""
    names = list(dict.fromkeys(name for those in measured["found"].values() for name, rounds in those.items() if rounds))
    lines = ["", "Writes at a glance: PUTs a second and their p50; seconds for a rename or a commit.", "",
             f"| | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for place, those in measured["found"].items():
        cells = []
        for rounds in map(those.get, names):
            if not rounds:
                cells.append("")
            elif place.startswith("PUT"):
                cells.append(f"{show_rate(bench.middle(rounds, 'per_s'))}/s, {bench.middle(rounds, 'p50_us') / 1000:,.1f} ms")
            else:
                cells.append(f"{bench.middle(rounds, 'seconds'):,.2f} s for {rounds[0]['objects']:,}")
        lines.append(f"| {place} | {' | '.join(cells)} |")
    return lines


# Figure, scale and digits of each column.
PUT_COLUMNS = {
    "PUTs/s": ("per_s",), "MB/s": ("bytes_per_s", 1e-6, 1), "p50 (µs)": ("p50_us",), "p99 (µs)": ("p99_us",),
    "cores used": ("cores", 1.0, 2), "PUTs per core and second": ("per_core",),
    "stored per core and second": ("stored_per_core",),
}
FILE_COLUMNS = {
    "seconds": ("seconds", 1.0, 2), "per file: p50 (µs)": ("p50_us",), "p99 (µs)": ("p99_us",),
    "seconds of CPU": ("cpu_s", 1.0, 2), "until the store has it (s)": ("stored_s", 1.0, 1),
}
SUBJECTS = f"""
- **{BACK}**: acknowledges after `fdatasync` of its journal and of its metadata on this disk. The store gets it 5 s
  later (`flush_after`).
- **{THROUGH}**: the same, and the store has it too before the acknowledgement.
- **{STORE}**: a gateway over a directory of this disk, with `fdatasync` of its journal as well. It is asked
  straight, and near by it has the server's core. The two above have another one like it behind them, on the
  client's core.
- **Alluxio, CACHE_THROUGH**: acknowledges once the store behind it does. **ASYNC_THROUGH**: once its worker has
  written the bytes to its tier, without a sync, so a power cut loses them. Both by its S3 endpoint; its servers
  share the server's core.
- *Stored per core* also counts the CPU time until the store has everything: write-back uploads after the
  acknowledgement.

Each PUT is of a new name. Its signature covers the head; the gateway computes the MD5 of the bytes for the ETag.
"""
RENAMES = f"""
**Rename** is what Hadoop's FileOutputCommitter asks of S3A for each commit: list the directory, copy each file (10
at a time), delete the old names (250 by a request). Version 1 of its algorithm does that twice, for tasks and for
the job, and version 2 once. The gateway changes metadata only. **Commit** is what S3A's magic committer does at a
job's end: complete an upload of one part for each file (32 at a time). Alluxio renames and commits
{ALLUXIO_FILES:,} files, because more take too long; the times are for those. *{OWN_RENAME}* is one request to its
proxy, as its client for Hadoop makes it.
"""


def table(bench, place, those, columns, first=None):
    """Of all subjects in one place. `first` makes a column of the figures themselves."""
    heads = ["subject", *([first[0]] if first else []), *columns]
    lines = ["", f"### {place}", "", f"| {' | '.join(heads)} |", f"| --- |{' ---: |' * (len(heads) - 1)}"]
    for name, rounds in those.items():
        if rounds:
            cells = [first[1](rounds[0])] if first else []
            cells += [cell(bench, rounds, *column) for column in columns.values()]
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def page(bench, measured):
    found, syncs, options = measured["found"], measured["syncs"], bench.options
    puts = {place: those for place, those in found.items() if place.startswith("PUT")}
    lines = [
        "", "## Writes", "",
        *bench.wrap(
            f"{options.write_rounds} rounds, of which Alluxio has the first. Everything is on one disk: "
            f"{measured['disk']}. Its own `fdatasync` after 4 KiB at the end of a file takes "
            f"{bench.spread(syncs, 'p50_us')} µs (p50) and {bench.spread(syncs, 'p99_us')} µs (p99)."),
        *SUBJECTS.rstrip().split("\n"),
    ]
    for place, those in puts.items():
        lines += table(bench, place, those, PUT_COLUMNS)
    lines += ["", "## Rename and commit", "",
              f"{options.files:,} files of {FILE_BYTES >> 10} KiB. The store has them already when they are renamed.",
              "",
              *RENAMES.strip().split("\n")]
    for place, those in found.items():
        if place not in puts:
            lines += table(bench, place, those, FILE_COLUMNS, ("files", lambda figures: f"{figures['objects']:,}"))
    return lines
