"""One Spark session that runs jobs as Underlay asks for them, over a Unix socket: a line of JSON for each request, and lines
for its outcome."""

import json
import os
import socket
import sys
import threading
import time
import traceback

from pyspark.sql import SparkSession

import files
import kmeans
import tables
import teragen
import terasort
import teravalidate
import tpcds

_CANCEL_AGAIN_S = 0.2
_PROGRESS_S = 0.5
_MAX_LINE_BYTES = 64 << 20
_PROBLEM_CHARACTERS = 4000
_REPEATED_CHARACTERS = 60

# What a request may name. A step that others read from is the part of its module that makes it.
_STEPS = {
    "teragen": teragen.run,
    "terasort": terasort.run,
    "teravalidate": teravalidate.run,
    "kmeans-points": kmeans.generate,
    "kmeans": kmeans.run,
    "tpcds-tables": tpcds.generate,
    "tpcds": tpcds.run,
}
# Steps whose committer is looked up.
_COMMITTED = {"teragen", "terasort"}
_CHECKS = {
    "teragen": lambda spark, options, result: teragen.verify(spark, options),
    "terasort": lambda spark, options, result: terasort.verify(spark, options),
    "kmeans": kmeans.verify,
    "tpcds": tpcds.verify,
}


def _first_line(java):
    return str(java.toString()).split("\n", 1)[0]


def _problem(error):
    """The gist of an error, and the part of the job that had it, if the job said which."""
    within = getattr(error, "within", None)
    return f"{within}: {_gist(error)}" if within else _gist(error)


def _gist(error):
    """What the JVM said, without its stack, or what Python did."""
    java = getattr(error, "java_exception", None)
    if java is not None:
        outer = _first_line(java)
        while java.getCause() is not None:
            java = java.getCause()
        root = _first_line(java)
        # Clients of stores repeat what the store said in each of their own exceptions.
        is_told = root[:_REPEATED_CHARACTERS] in outer
        return (outer if is_told else f"{outer}; because of {root}")[:_PROBLEM_CHARACTERS]
    if isinstance(error, ValueError):
        return str(error)[:_PROBLEM_CHARACTERS]
    return "".join(traceback.format_exception_only(type(error), error)).strip()[:_PROBLEM_CHARACTERS]


class Service:
    def __init__(self, spark):
        self.spark = spark
        self.settings = {}

    def _set(self, settings):
        """The session's settings for one request; what an earlier one set is taken back."""
        for name in self.settings.keys() - settings.keys():
            self.spark.conf.unset(name)
        for name, value in settings.items():
            self.spark.conf.set(name, value)
        self.settings = settings

    def handle(self, request):
        what = request["do"]
        if what == "ready":
            status = self.spark.sparkContext._jsc.sc().statusTracker()
            # The driver is counted too.
            return {"executors": len(status.getExecutorInfos()) - 1}
        if what == "make-bucket":
            files.make_bucket(self.spark, request)
            return {}
        if what == "mark":
            files.mark(self.spark, request)
            return {}
        if what == "leave":
            files.leave(self.spark, request["path"])
            return {}
        if what == "unstored":
            return files.unstored(self.spark, request["path"])
        if what == "delete":
            self._set(request["settings"])
            return {"deleted": files.delete(self.spark, request["path"])}
        options, job = request["options"], request["job"]
        self._set(request["settings"])
        context = self.spark.sparkContext
        context.setJobGroup(request["group"], f"{what} {job}", True)
        try:
            if what == "verify":
                return _CHECKS[job](self.spark, options, request["result"])
            table = job in _COMMITTED and tables.is_table(options["output"])
            if table:
                tables.prepare(self.spark)
            began, since = time.time(), time.monotonic()
            result = _STEPS[job](self.spark, options)
            ended, until = time.time(), time.monotonic()
            # What the event log lacks of it is on its way.
            context._jsc.sc().listenerBus().waitUntilEmpty()
            if job in _COMMITTED:
                # No part of the job: these requests come after its end.
                told = tables.committed(self.spark, options["output"], began) if table else files.committed(self.spark, options["output"])
                result = {**result, **told}
            # Events use the first clock, which may be set while a job runs; the other one never is.
            return {"began_s": began, "ended_s": ended, "took_s": until - since, "result": result}
        finally:
            context.setLocalProperty("spark.jobGroup.id", None)

    def is_over(self):
        """Whether the session can run no job any more, as when its Java program has ended."""
        try:
            return bool(self.spark.sparkContext._jsc.sc().isStopped())
        except Exception:  # Nobody answers, or there is nobody.
            return True

    def progress(self):
        """The stage that runs, and how many of the tasks of all stages of this moment are done."""
        tracker = self.spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
        stages = [stage for stage in stages if stage is not None]
        tasks = sum(stage.numTasks for stage in stages)
        done = sum(stage.numCompletedTasks for stage in stages)
        name = stages[0].name.split(" at ", 1)[0] if stages else "driver"
        return {"event": "progress", "phase": name, "done": done / tasks if tasks else 0.0}


def _converse(service, connection):
    lock = threading.Lock()
    over = threading.Event()

    def tell(message):
        with lock:
            connection.sendall((json.dumps(message) + "\n").encode())

    reader = connection.makefile("rb")
    line = reader.readline(_MAX_LINE_BYTES)
    if not line:
        return
    request = json.loads(line)

    def listen():
        # Another line, or the end of the connection: the client has lost interest.
        reader.readline(_MAX_LINE_BYTES)
        while not over.is_set():
            try:
                service.spark.sparkContext.cancelAllJobs()
            except Exception:  # The session is being ended, and has no jobs any more.
                return
            # One that was between two of Spark's own jobs begins the next.
            over.wait(_CANCEL_AGAIN_S)

    def report():
        while not over.wait(_PROGRESS_S):
            try:
                tell(service.progress())
            except OSError:
                return
            except Exception:  # The session is being ended, and has no stages any more.
                continue

    threading.Thread(target=listen, daemon=True).start()
    threading.Thread(target=report, daemon=True).start()
    try:
        answer = {"event": "finished", **service.handle(request)}
    except Exception as error:  # The requester gets every error.
        traceback.print_exc()
        answer = {"event": "failed", "problem": _problem(error)}
    # Else each later job would fail by what ended the session in this one.
    session_is_over = answer["event"] == "failed" and service.is_over()
    over.set()
    try:
        tell(answer)
    except OSError:
        pass
    if session_is_over:
        print("the session is over", file=sys.stderr, flush=True)
        # Its Java program may be in a state in which it never ends by itself.
        os._exit(1)


def main():
    path = sys.argv[1]
    spark = SparkSession.builder.appName("underlay").getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.umask(0o077)
    listener.bind(path)
    listener.listen(8)
    service = Service(spark)
    while True:
        connection, _ = listener.accept()
        with connection:
            try:
                _converse(service, connection)
            except (OSError, ValueError) as error:
                print(f"a request was lost: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
