package underlay.mapreduce;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.math.BigInteger;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.examples.WordCount;
import org.apache.hadoop.examples.terasort.TeraGen;
import org.apache.hadoop.examples.terasort.TeraInputFormat;
import org.apache.hadoop.examples.terasort.TeraOutputFormat;
import org.apache.hadoop.examples.terasort.TeraSort;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.MRJobConfig;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.apache.hadoop.mapreduce.lib.output.TextOutputFormat;

/**
 * The jobs, configured like the example programs of MapReduce and from their classes. Those programs wait for their job themselves; here
 * a job is only prepared, so that it can be watched and killed while it runs.
 */
final class Jobs {
  private static final String EXAMPLES = "org.apache.hadoop.examples.";
  private static final int TERA_ROW_BYTES = 100;
  private static final String PARTITIONS = "_partition.lst";

  private Jobs() {}

  /** The job of a request, ready to be submitted. */
  static Job prepare(Request request, Configuration site, String examplesJar, String ownJar)
      throws Exception {
    Configuration conf = new Configuration(site);
    request.properties.forEach(conf::set);
    Job job = Job.getInstance(conf, "underlay " + request.job);
    if (request.maps > 0) {
      job.getConfiguration().setInt(MRJobConfig.NUM_MAPS, request.maps);
    }
    job.setNumReduceTasks(request.reduces);
    // In a cluster that was started here, containers have the classes on their class path.
    String jar = request.job.equals("shuffle") ? ownJar : examplesJar;
    if (jar != null) {
      job.setJar(jar);
    }
    switch (request.job) {
      case "teragen":
        teragen(job, request);
        break;
      case "terasort":
        terasort(job, request);
        break;
      case "teravalidate":
        teravalidate(job, request);
        break;
      case "text":
        text(job, request);
        break;
      case "wordcount":
        wordcount(job, request);
        break;
      case "shuffle":
        Shuffle.configure(job, request.bytes, request.compressibility, request.seed);
        break;
      default:
        throw new IllegalArgumentException("there is no job '" + request.job + "'");
    }
    return job;
  }

  /** A class of the examples that is not public. */
  private static <T> Class<? extends T> example(String name, Class<T> kind)
      throws ClassNotFoundException {
    return Class.forName(EXAMPLES + name).asSubclass(kind);
  }

  private static void teragen(Job job, Request request) throws Exception {
    job.getConfiguration().setLong("mapreduce.terasort.num-rows", request.bytes / TERA_ROW_BYTES);
    job.setMapperClass(TeraGen.SortGenMapper.class);
    job.setInputFormatClass(
        example("terasort.TeraGen$RangeInputFormat", org.apache.hadoop.mapreduce.InputFormat.class));
    job.setOutputFormatClass(TeraOutputFormat.class);
    textToText(job);
    FileOutputFormat.setOutputPath(job, new Path(request.output));
  }

  private static void terasort(Job job, Request request) throws Exception {
    Path output = new Path(request.output);
    inputOfAbout(job, request);
    FileOutputFormat.setOutputPath(job, output);
    job.setInputFormatClass(TeraInputFormat.class);
    job.setOutputFormatClass(TeraOutputFormat.class);
    textToText(job);
    job.getConfiguration().setInt("dfs.replication", TeraSort.getOutputReplication(job));
    // The ranges of the reduces come from a sample, which is read here before the job is submitted.
    Path partitions = new Path(output, PARTITIONS);
    try {
      TeraInputFormat.writePartitionFile(job, partitions);
    } catch (Exception | Error error) {
      throw error;
    } catch (Throwable error) {
      throw new IOException(error);
    }
    job.addCacheFile(new URI(partitions + "#" + PARTITIONS));
    job.setPartitionerClass(
        example("terasort.TeraSort$TotalOrderPartitioner", org.apache.hadoop.mapreduce.Partitioner.class));
  }

  private static void teravalidate(Job job, Request request) throws Exception {
    FileInputFormat.addInputPath(job, new Path(request.input));
    FileOutputFormat.setOutputPath(job, new Path(request.output));
    job.setMapperClass(
        example("terasort.TeraValidate$ValidateMapper", org.apache.hadoop.mapreduce.Mapper.class));
    job.setReducerClass(
        example("terasort.TeraValidate$ValidateReducer", org.apache.hadoop.mapreduce.Reducer.class));
    textToText(job);
    job.setNumReduceTasks(1);
    // A file must not be split, because its order is checked as a whole.
    FileInputFormat.setMinInputSplitSize(job, Long.MAX_VALUE);
    job.setInputFormatClass(TeraInputFormat.class);
  }

  private static void text(Job job, Request request) throws Exception {
    job.getConfiguration()
        .setLong("mapreduce.randomtextwriter.bytespermap", Math.max(1, request.bytes / Math.max(1, request.maps)));
    job.setInputFormatClass(
        example("RandomWriter$RandomInputFormat", org.apache.hadoop.mapreduce.InputFormat.class));
    job.setMapperClass(
        example("RandomTextWriter$RandomTextMapper", org.apache.hadoop.mapreduce.Mapper.class));
    job.setOutputFormatClass(TextOutputFormat.class);
    textToText(job);
    FileOutputFormat.setOutputPath(job, new Path(request.output));
  }

  private static void wordcount(Job job, Request request) throws Exception {
    inputOfAbout(job, request);
    job.setMapperClass(WordCount.TokenizerMapper.class);
    job.setCombinerClass(WordCount.IntSumReducer.class);
    job.setReducerClass(WordCount.IntSumReducer.class);
    job.setOutputKeyClass(Text.class);
    job.setOutputValueClass(IntWritable.class);
    FileOutputFormat.setOutputPath(job, new Path(request.output));
  }

  private static void textToText(Job job) {
    job.setOutputKeyClass(Text.class);
    job.setOutputValueClass(Text.class);
  }

  /** Splits the input into about as many parts as maps are requested. A split is part of one file. */
  private static void inputOfAbout(Job job, Request request) throws IOException {
    Path input = new Path(request.input);
    FileInputFormat.addInputPath(job, input);
    if (request.maps > 0) {
      long bytes = 0;
      for (FileStatus file : files(job.getConfiguration(), input)) {
        bytes += file.getLen();
      }
      long split = Math.max(1, (bytes + request.maps - 1) / request.maps);
      FileInputFormat.setMinInputSplitSize(job, split);
      FileInputFormat.setMaxInputSplitSize(job, split);
    }
  }

  /** The output files of a job in its folder. Names that start with an underscore are not output. */
  static FileStatus[] files(Configuration conf, Path folder) throws IOException {
    return folder.getFileSystem(conf).listStatus(folder, path -> !path.getName().startsWith("_"));
  }

  /** The result of teravalidate: the checksum of all rows in hexadecimal, or an error that says what is out of order. */
  static String checksum(Configuration conf, Path report) throws IOException {
    String checksum = null;
    FileSystem fileSystem = report.getFileSystem(conf);
    for (FileStatus file : files(conf, report)) {
      try (BufferedReader lines =
          new BufferedReader(
              new InputStreamReader(fileSystem.open(file.getPath()), StandardCharsets.UTF_8))) {
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
          String[] words = line.split("\t", 2);
          if (words.length == 2 && words[0].equals("checksum")) {
            checksum = words[1].trim();
          } else {
            throw new IOException("terasort's output is not in order: " + line);
          }
        }
      }
    }
    if (checksum == null) {
      throw new IOException("teravalidate's report has no checksum");
    }
    return checksum;
  }

  /** The lower 64 bits of a checksum: as much as the counter of teragen holds. */
  static long lowerBits(String checksum) {
    return new BigInteger(checksum, 16).longValue();
  }
}
