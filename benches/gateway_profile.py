"""What the CPU time of a server's hits goes to, by the kernel's profiler (`perf`).

`benches/gateway` runs this, and hands itself over as `bench`.
"""

import pathlib
import re
import shutil
import subprocess
import time

# By the name of the function that a sample was in; the first that fits counts. What is inlined counts for its caller.
GROUPS = [
    ("the kernel: sockets, epoll, scheduling", r"^\[kernel|^\[k\]|^\[vdso\]|^\[unknown\]"),
    ("SHA-256 and HMAC: the signature", r"sha2|hmac|digest::|sha256|zeroize"),
    ("allocating and freeing memory", 
     r"malloc|calloc|realloc|\bfree\b|cfree|_int_|arena_|tcache|unlink_chunk|alloc::alloc"),
    ("copying and comparing bytes", r"mem(cpy|move|set|cmp|chr)"),
    ("metadata (redb), and decoding them", r"redb|postcard|serde"),
    ("the block cache (foyer)", r"foyer|equivalent|hashbrown"),
    ("S3 (s3s): the signature's text, parsing, answers", 
     r"\bs3s|urlencod|percent_enc|\bmime\b|nom::|form_urlencoded|\burl::"),
    ("HTTP (hyper)", r"hyper|httparse|\bhttp::|http_body|httpdate"),
    ("the runtime (tokio)", r"tokio|\bmio::|futures"),
    ("formatting text", r"core::fmt|alloc::fmt|\bfmt::|to_string"),
    ("the clock", r"clock_gettime|Timespec|SystemTime|Instant|time::"),
    ("the gateway itself", r"underlay|supervision"),
]
OTHER = "anything else"
# Samples a second: an odd number, so that nothing else keeps its pace.
RATE_HZ = 997


def is_available():
    return shutil.which("perf") is not None


def of(bench, folder, subject, seconds, settings, keep=None):
    """Shares by group, while the client asks, and what a request takes in all, in microseconds of CPU.

    `keep` names a file for the share of every function.
    """
    address, servers, own = subject
    family = [str(pid) for pid in bench.family(servers)]
    data = folder / "perf.data"
    before = bench.cpu_s(servers)
    command = ["perf", "record", "-q", "-e", "cpu-clock", "-F", str(RATE_HZ), "-o", str(data),
               "-p", ",".join(family), "--", "sleep", str(seconds + 0.2)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as recording:
        time.sleep(0.2)
        figures = bench.client("get", address, ms=int(seconds * 1000), **settings, **own)
        cpu_s = bench.cpu_s(servers) - before
        _, err = recording.communicate()
    if recording.returncode != 0:
        raise RuntimeError(f"perf: {err[-300:]}")
    asked = ["perf", "report", "-i", str(data), "--stdio", "--no-children", "-F", "overhead,dso,sym"]
    text = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
    data.unlink()
    if keep:
        pathlib.Path(keep).write_text(text)
    shares = {}
    for line in text.splitlines():
        found = re.match(r"\s*([\d.]+)%\s+(\S+)\s+\[.\]\s+(.*)$", line)
        if found:
            group = group_of(found[2], found[3])
            shares[group] = shares.get(group, 0.0) + float(found[1]) / 100
    return shares, cpu_s / figures["requests"] * 1e6


def group_of(library, symbol):
    for name, pattern in GROUPS:
        if re.search(pattern, f"{library} {symbol}"):
            return name
    return OTHER


def page(profiles):
    """A table, from shares and microseconds by subject."""
    names = list(profiles)
    lines = ["", "## Hits of 4 KiB: where the time goes", "",
             f"By `perf`, {RATE_HZ} samples a second, while each server answers as above; "
             "microseconds of CPU for a request, with their share. "
             "A function that the compiler has put into its caller counts for the caller.", "",
             f"| | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
    for group in [name for name, _ in GROUPS] + [OTHER]:
        cells = []
        for shares, request_us in profiles.values():
            share = shares.get(group, 0.0)
            cells.append(f"{share * request_us:.1f} ({share:.0%})" if share >= 0.0005 else "")
        if any(cells):
            lines.append(f"| {group} | {' | '.join(cells)} |")
    lines.append(f"| **all** | {' | '.join(f'{request_us:.1f}' for _, request_us in profiles.values())} |")
    return lines
