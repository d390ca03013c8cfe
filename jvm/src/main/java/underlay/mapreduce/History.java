package underlay.mapreduce;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.Counter;
import org.apache.hadoop.mapreduce.CounterGroup;
import org.apache.hadoop.mapreduce.Counters;
import org.apache.hadoop.mapreduce.JobID;
import org.apache.hadoop.mapreduce.TaskType;
import org.apache.hadoop.mapreduce.jobhistory.JobHistoryParser;
import org.apache.hadoop.mapreduce.jobhistory.JobHistoryParser.JobInfo;
import org.apache.hadoop.mapreduce.jobhistory.JobHistoryParser.TaskAttemptInfo;
import org.apache.hadoop.mapreduce.jobhistory.JobHistoryParser.TaskInfo;
import org.apache.hadoop.mapreduce.v2.jobhistory.JobHistoryUtils;

/** The history of a job that its application master writes: tasks, attempts and counters. */
final class History {
  private static final long POLL_MS = 50;
  private static final int ERRORS = 3;
  private static final int ERROR_CHARACTERS = 800;
  private static final String SUCCEEDED = "SUCCEEDED";

  private final JobInfo info;

  private History(JobInfo info) {
    this.info = info;
  }

  /**
   * The history of a job that has ended. It is where its master wrote it, or where a history server, if there is one, has moved it.
   */
  static History of(JobID job, Configuration conf, String user, long waitMs)
      throws IOException, InterruptedException {
    Path fresh =
        new Path(JobHistoryUtils.getConfiguredHistoryIntermediateDoneDirPrefix(conf), user);
    Path done = new Path(JobHistoryUtils.getConfiguredHistoryServerDoneDirPrefix(conf));
    long deadline = System.nanoTime() + waitMs * 1_000_000;
    while (true) {
      FileSystem fileSystem = fresh.getFileSystem(conf);
      String name = "/" + job + "*.jhist";
      for (Path pattern : List.of(new Path(fresh + name), new Path(done + "/*/*/*/*" + name))) {
        FileStatus[] found = fileSystem.globStatus(pattern);
        if (found != null && found.length > 0) {
          try {
            return new History(new JobHistoryParser(fileSystem, found[0].getPath()).parse());
          } catch (FileNotFoundException moved) {
            // The history server has moved it since it was listed.
          }
        }
      }
      if (System.nanoTime() > deadline) {
        throw new FileNotFoundException(
            "the history of " + job + " is neither in " + fresh + " nor below " + done);
      }
      Thread.sleep(POLL_MS);
    }
  }

  boolean succeeded() {
    return SUCCEEDED.equals(info.getJobStatus());
  }

  /** Why the job failed: its own diagnostics and those of the first attempts that failed. */
  String problem() {
    StringBuilder text = new StringBuilder("the job ended as " + info.getJobStatus());
    if (info.getErrorInfo() != null && !info.getErrorInfo().isBlank()) {
      text.append(": ").append(shortened(info.getErrorInfo()));
    }
    int told = 0;
    for (TaskAttemptInfo attempt : attempts()) {
      boolean failed = "FAILED".equals(attempt.getTaskStatus());
      if (failed && attempt.getError() != null && told++ < ERRORS) {
        text.append('\n').append(attempt.getAttemptId()).append(": ").append(shortened(attempt.getError()));
      }
    }
    return text.toString();
  }

  static String shortened(String text) {
    String whole = text.strip();
    return whole.length() <= ERROR_CHARACTERS ? whole : whole.substring(0, ERROR_CHARACTERS) + " ...";
  }

  private List<TaskAttemptInfo> attempts() {
    List<TaskAttemptInfo> attempts = new ArrayList<>();
    for (TaskInfo task : info.getAllTasks().values()) {
      if (task.getTaskType() == TaskType.MAP || task.getTaskType() == TaskType.REDUCE) {
        attempts.addAll(task.getAllTaskAttempts().values());
      }
    }
    return attempts;
  }

  long checksumOfTeragen() {
    Counters counters = info.getTotalCounters();
    return counters.findCounter("org.apache.hadoop.examples.terasort.TeraGen$Counters", "CHECKSUM").getValue();
  }

  /** Adds phases, tasks and counters to `answer`. */
  void describe(ObjectNode answer) {
    Phase startup = new Phase();
    Phase map = new Phase();
    Phase shuffle = new Phase();
    Phase merge = new Phase();
    Phase reduce = new Phase();
    int maps = 0;
    int reduces = 0;
    int lost = 0;
    startup.from(info.getSubmitTime());
    for (TaskAttemptInfo attempt : attempts()) {
      if (!SUCCEEDED.equals(attempt.getTaskStatus())) {
        lost++;
        continue;
      }
      startup.firstEnd(attempt.getStartTime());
      if (attempt.getTaskType() == TaskType.MAP) {
        maps++;
        map.of(attempt.getStartTime(), attempt.getFinishTime());
      } else {
        reduces++;
        shuffle.of(attempt.getStartTime(), attempt.getShuffleFinishTime());
        merge.of(attempt.getShuffleFinishTime(), attempt.getSortFinishTime());
        reduce.of(attempt.getSortFinishTime(), attempt.getFinishTime());
      }
    }
    ObjectNode phases = answer.putObject("phases_ms");
    startup.put(phases, "startup");
    map.put(phases, "map");
    shuffle.put(phases, "shuffle");
    merge.put(phases, "merge");
    reduce.put(phases, "reduce");
    ObjectNode tasks = answer.putObject("tasks");
    tasks.put("map", maps);
    tasks.put("reduce", reduces);
    answer.put("lost_tasks", lost);
    ObjectNode counters = answer.putObject("counters");
    for (CounterGroup group : info.getTotalCounters()) {
      String name = group.getName();
      name = name.substring(name.lastIndexOf('.') + 1);
      for (Counter counter : group) {
        counters.put(name + "." + counter.getName(), counter.getValue());
      }
    }
    answer.put("shuffled_bytes", total(counters, "TaskCounter.REDUCE_SHUFFLE_BYTES"));
    answer.put("input_bytes", total(counters, "FileInputFormatCounter.BYTES_READ"));
    answer.put("output_bytes", total(counters, "FileOutputFormatCounter.BYTES_WRITTEN"));
  }

  private static long total(ObjectNode counters, String name) {
    return counters.path(name).asLong(0);
  }

  /** The time from the first start to the last end. */
  private static final class Phase {
    private long start = Long.MAX_VALUE;
    private long end = Long.MIN_VALUE;

    void of(long from, long to) {
      if (from > 0 && to >= from) {
        start = Math.min(start, from);
        end = Math.max(end, to);
      }
    }

    void from(long time) {
      start = time;
    }

    void firstEnd(long time) {
      end = end == Long.MIN_VALUE ? time : Math.min(end, time);
    }

    void put(ObjectNode phases, String name) {
      if (start != Long.MAX_VALUE && end >= start) {
        phases.put(name, end - start);
      }
    }
  }
}
