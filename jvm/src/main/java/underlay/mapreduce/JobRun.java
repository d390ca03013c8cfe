package underlay.mapreduce;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.IOException;
import java.util.EnumSet;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.JobID;
import org.apache.hadoop.mapreduce.JobStatus;
import org.apache.hadoop.mapreduce.TypeConverter;
import org.apache.hadoop.security.UserGroupInformation;
import org.apache.hadoop.yarn.api.records.ApplicationAttemptId;
import org.apache.hadoop.yarn.api.records.ApplicationId;
import org.apache.hadoop.yarn.api.records.ApplicationReport;
import org.apache.hadoop.yarn.api.records.ContainerId;
import org.apache.hadoop.yarn.api.records.FinalApplicationStatus;
import org.apache.hadoop.yarn.api.records.SignalContainerCommand;
import org.apache.hadoop.yarn.api.records.YarnApplicationState;
import org.apache.hadoop.yarn.client.api.YarnClient;

/** One job from submission to completion. */
final class JobRun {
  private static final EnumSet<YarnApplicationState> ENDED =
      EnumSet.of(YarnApplicationState.FINISHED, YarnApplicationState.FAILED, YarnApplicationState.KILLED);
  private static final long POLL_MS = 50;
  /** The interval of polling the job, which asks its master and so costs more than asking the ResourceManager. */
  private static final long LOOK_MS = 400;

  private final Request request;
  private final Configuration site;
  private final YarnClient yarn;
  private final boolean ours;
  private final Talk talk;
  private Job job;
  private ApplicationId application;

  JobRun(Request request, Configuration site, YarnClient yarn, boolean ours, Talk talk) {
    this.request = request;
    this.site = site;
    this.yarn = yarn;
    this.ours = ours;
    this.talk = talk;
  }

  /** Runs it, reports its progress, and returns the last answer. */
  ObjectNode run(String examplesJar, String ownJar) throws Exception {
    if (request.output != null) {
      Path output = new Path(request.output);
      output.getFileSystem(site).delete(output, true);
    }
    long started = System.nanoTime();
    job = Jobs.prepare(request, site, examplesJar, ownJar);
    job.submit();
    JobID id = job.getJobID();
    application = TypeConverter.toYarn(id).getAppId();
    talk.say("submitted").put("application", application.toString());
    talk.send();
    ApplicationReport report = await();
    long wallMs = (System.nanoTime() - started) / 1_000_000;
    if (talk.killed() || report.getYarnApplicationState() == YarnApplicationState.KILLED) {
      return failed("the job was killed");
    }
    if (ours) {
      endMaster(report);
    }
    String user = UserGroupInformation.getCurrentUser().getShortUserName();
    boolean succeeded = report.getFinalApplicationStatus() == FinalApplicationStatus.SUCCEEDED;
    History history;
    try {
      history = History.of(id, job.getConfiguration(), user, request.historyWaitMs);
    } catch (IOException error) {
      if (succeeded) {
        throw error;
      }
      // Its master failed before it wrote a history.
      return failed("the job ended as FAILED: " + History.shortened(report.getDiagnostics()));
    }
    if (!succeeded || !history.succeeded()) {
      return failed(history.problem());
    }
    ObjectNode answer = talk.say("finished");
    answer.put("application", application.toString());
    answer.put("wall_ms", wallMs);
    history.describe(answer);
    if (request.job.equals("teragen")) {
      answer.put("checksum", history.checksumOfTeragen());
    } else if (request.job.equals("teravalidate")) {
      String checksum = Jobs.checksum(site, new Path(request.output));
      answer.put("checksum", Jobs.lowerBits(checksum));
    }
    return answer;
  }

  private ObjectNode failed(String problem) {
    ObjectNode answer = talk.say("failed");
    answer.put("problem", problem);
    return answer;
  }

  private ApplicationReport await() throws Exception {
    boolean killing = false;
    long lookedAt = 0;
    while (true) {
      ApplicationReport report = yarn.getApplicationReport(application);
      if (ENDED.contains(report.getYarnApplicationState())) {
        return report;
      }
      if (talk.killed() && !killing) {
        killing = true;
        yarn.killApplication(application);
      }
      long now = System.nanoTime() / 1_000_000;
      if (now - lookedAt >= LOOK_MS) {
        lookedAt = now;
        look(report);
      }
      Thread.sleep(POLL_MS);
    }
  }

  private void look(ApplicationReport report) throws IOException {
    float map = 0;
    float reduce = 0;
    if (report.getYarnApplicationState() == YarnApplicationState.RUNNING) {
      try {
        JobStatus status = job.getStatus();
        map = status.getMapProgress();
        reduce = status.getReduceProgress();
      } catch (IOException | InterruptedException | RuntimeException ending) {
        // The master can end between its last task and its last report.
        return;
      }
    }
    boolean reduces = job.getNumReduceTasks() > 0;
    ObjectNode progress = talk.say("progress");
    progress.put("phase", map < 1 || !reduces ? "map" : "reduce");
    progress.put("done", reduces ? (map + reduce) / 2 : map);
    talk.send();
  }

  /** A master stays for five seconds after its job, for late clients. It must not overlap with the next job. */
  private void endMaster(ApplicationReport report) throws InterruptedException {
    ApplicationAttemptId attempt = report.getCurrentApplicationAttemptId();
    if (attempt == null) {
      return;
    }
    try {
      ContainerId master = yarn.getApplicationAttemptReport(attempt).getAMContainerId();
      if (master != null) {
        yarn.signalToContainer(master, SignalContainerCommand.FORCEFUL_SHUTDOWN);
      }
    } catch (Exception ended) {
      // It has ended by itself.
      if (ended instanceof InterruptedException) {
        throw (InterruptedException) ended;
      }
    }
  }
}
