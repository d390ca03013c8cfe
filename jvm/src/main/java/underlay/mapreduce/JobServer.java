package underlay.mapreduce;

import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.File;
import java.io.IOException;
import java.io.OutputStream;
import java.net.StandardProtocolFamily;
import java.net.URISyntaxException;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.ServerSocketChannel;
import java.nio.channels.SocketChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.jar.JarEntry;
import java.util.jar.JarOutputStream;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.hadoop.examples.terasort.TeraSort;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.mapred.JobConf;
import org.apache.hadoop.yarn.api.records.NodeState;
import org.apache.hadoop.yarn.client.api.YarnClient;
import org.apache.hadoop.yarn.conf.YarnConfiguration;

/**
 * The job client. It is a long-running process, because starting Java with a class path of a hundred files for every job would take
 * longer than a small job does. Its cluster is that of the configuration on its class path.
 *
 * <p>Arguments: the path of the Unix socket to listen on, and either `ours` or, for an existing cluster, the directory for a jar with our
 * classes.
 */
public final class JobServer {
  private static final String OURS = "ours";

  private final YarnConfiguration site;
  private final YarnClient yarn;
  private final boolean ours;
  private final String examplesJar;
  private final String ownJar;

  private JobServer(String jarFolder) throws IOException, URISyntaxException {
    // Loading JobConf registers mapred-site.xml, loading YarnConfiguration yarn-site.xml.
    site = new YarnConfiguration(new JobConf());
    yarn = YarnClient.createYarnClient();
    yarn.init(site);
    yarn.start();
    ours = jarFolder.equals(OURS);
    examplesJar = ours ? null : placeOf(TeraSort.class).toString();
    ownJar = ours ? null : pack(placeOf(JobServer.class), Path.of(jarFolder, "underlay-jobs.jar"));
  }

  public static void main(String[] arguments) throws Exception {
    if (arguments.length != 2) {
      throw new IllegalArgumentException("expected a socket's path, and '" + OURS + "' or a folder");
    }
    JobServer server = new JobServer(arguments[1]);
    try (ServerSocketChannel listener = ServerSocketChannel.open(StandardProtocolFamily.UNIX)) {
      listener.bind(UnixDomainSocketAddress.of(arguments[0]));
      while (true) {
        SocketChannel channel = listener.accept();
        Thread thread = new Thread(new Talk(channel, server::answer), "underlay-request");
        thread.setDaemon(true);
        thread.start();
      }
    }
  }

  private ObjectNode answer(Request request, Talk talk) throws Exception {
    switch (request.action) {
      case "run":
        return new JobRun(request, site, yarn, ours, talk).run(examplesJar, ownJar);
      case "delete":
        int deleted = 0;
        for (String path : request.paths) {
          org.apache.hadoop.fs.Path file = new org.apache.hadoop.fs.Path(path);
          if (file.getFileSystem(site).delete(file, true)) {
            deleted++;
          }
        }
        return talk.say("finished").put("deleted", deleted);
      case "length":
        ObjectNode answer = talk.say("finished");
        ObjectNode lengths = answer.putObject("lengths");
        for (String path : request.paths) {
          lengths.put(path, length(new org.apache.hadoop.fs.Path(path)));
        }
        return answer;
      case "policy":
        for (String path : request.paths) {
          org.apache.hadoop.fs.Path folder = new org.apache.hadoop.fs.Path(path);
          FileSystem fileSystem = folder.getFileSystem(site);
          fileSystem.mkdirs(folder);
          fileSystem.setStoragePolicy(folder, request.policy);
        }
        return talk.say("finished");
      case "nodes":
        return talk.say("finished").put("nodes", yarn.getNodeReports(NodeState.RUNNING).size());
      default:
        throw new IllegalArgumentException("there is no request " + request.action);
    }
  }

  /** The size of a job's output in a folder, without copies; -1 if the job has not finished. */
  private long length(org.apache.hadoop.fs.Path folder) throws IOException {
    FileSystem fileSystem = folder.getFileSystem(site);
    if (!fileSystem.exists(new org.apache.hadoop.fs.Path(folder, "_SUCCESS"))) {
      return -1;
    }
    long bytes = 0;
    for (FileStatus file : Jobs.files(site, folder)) {
      bytes += file.getLen();
    }
    return bytes;
  }

  private static Path placeOf(Class<?> type) throws URISyntaxException {
    return Path.of(type.getProtectionDomain().getCodeSource().getLocation().toURI());
  }

  /** Packs our classes into a jar that a job can bring along. */
  private static String pack(Path classes, Path jar) throws IOException {
    List<Path> files;
    try (Stream<Path> all = Files.walk(classes)) {
      files = all.filter(Files::isRegularFile).sorted().collect(Collectors.toList());
    }
    try (OutputStream out = Files.newOutputStream(jar);
        JarOutputStream entries = new JarOutputStream(out)) {
      for (Path file : files) {
        String name = classes.relativize(file).toString().replace(File.separatorChar, '/');
        entries.putNextEntry(new JarEntry(name));
        Files.copy(file, entries);
        entries.closeEntry();
      }
    }
    return jar.toString();
  }
}
