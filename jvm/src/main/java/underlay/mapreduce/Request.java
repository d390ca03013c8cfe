package underlay.mapreduce;

import com.fasterxml.jackson.annotation.JsonProperty;
import java.util.List;
import java.util.Map;

/** A request in one line of JSON. Which fields are used depends on `do`. */
public final class Request {
  /** `run`, `delete`, `length`, `policy`, `nodes`. */
  @JsonProperty(value = "do", required = true)
  public String action;

  /** For `run`: the kind of job. */
  public String job = "";

  public String input;
  public String output;

  /** For `delete`, `length` and `policy`. */
  public List<String> paths = List.of();

  /** For `policy`: the name of HDFS's storage policy. */
  public String policy;

  public long bytes;
  public int maps;
  public int reduces;
  public double compressibility;
  public long seed;

  /** Additional properties of this job. */
  public Map<String, String> properties = Map.of();

  /** How long to look for the history of the job. */
  @JsonProperty("history_wait_ms")
  public long historyWaitMs = 10_000;
}
