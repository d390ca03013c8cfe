package underlay.mapreduce;

import com.fasterxml.jackson.annotation.JsonProperty;
import java.util.List;
import java.util.Map;

/** What is asked for, one line of JSON. Which fields mean something depends on `do`. */
public final class Request {
  /** `run`, `delete`, `length`, `policy`, `nodes`. */
  @JsonProperty(value = "do", required = true)
  public String action;

  /** Of `run`: which kind of job. */
  public String job = "";

  public String input;
  public String output;

  /** Of `delete`, `length` and `policy`. */
  public List<String> paths = List.of();

  /** Of `policy`: the name of HDFS's storage policy. */
  public String policy;

  public long bytes;
  public int maps;
  public int reduces;
  public double compressibility;
  public long seed;

  /** Properties of this job alone. */
  public Map<String, String> properties = Map.of();

  /** The history of the job is looked for so long. */
  @JsonProperty("history_wait_ms")
  public long historyWaitMs = 10_000;
}
