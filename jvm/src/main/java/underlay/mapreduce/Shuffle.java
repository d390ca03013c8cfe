package underlay.mapreduce;

import java.io.DataInput;
import java.io.DataOutput;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.io.BytesWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.Writable;
import org.apache.hadoop.mapreduce.InputFormat;
import org.apache.hadoop.mapreduce.InputSplit;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.JobContext;
import org.apache.hadoop.mapreduce.MRJobConfig;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.RecordReader;
import org.apache.hadoop.mapreduce.Reducer;
import org.apache.hadoop.mapreduce.TaskAttemptContext;
import org.apache.hadoop.mapreduce.lib.output.NullOutputFormat;

/**
 * A job that does nothing but shuffle: its maps generate records without reading anything, and its reduces discard them. All of its work
 * is what maps write, reduces fetch and both merge.
 */
public final class Shuffle {
  /** A record is a random key and a value. With this length, moving records costs more than comparing them. */
  static final int KEY_BYTES = 10;
  static final int RECORD_BYTES = 1000;

  private static final String BYTES = "underlay.shuffle.bytes";
  private static final String COMPRESSIBILITY = "underlay.shuffle.compressibility";
  private static final String SEED = "underlay.shuffle.seed";

  private Shuffle() {}

  /** Configures `job` to move this many bytes. This share of the values, from 0 to 1, is zeros. */
  static void configure(Job job, long bytes, double compressibility, long seed) {
    Configuration conf = job.getConfiguration();
    conf.setLong(BYTES, bytes);
    conf.setDouble(COMPRESSIBILITY, compressibility);
    conf.setLong(SEED, seed);
    job.setInputFormatClass(Numbers.class);
    job.setMapperClass(Maker.class);
    job.setReducerClass(Discarder.class);
    job.setOutputFormatClass(NullOutputFormat.class);
    job.setMapOutputKeyClass(BytesWritable.class);
    job.setMapOutputValueClass(BytesWritable.class);
    job.setOutputKeyClass(NullWritable.class);
    job.setOutputValueClass(NullWritable.class);
  }

  /** A split: the number of records that a map generates. */
  public static final class Part extends InputSplit implements Writable {
    private int index;
    private long records;

    public Part() {}

    Part(int index, long records) {
      this.index = index;
      this.records = records;
    }

    @Override
    public long getLength() {
      return records * RECORD_BYTES;
    }

    @Override
    public String[] getLocations() {
      return new String[0];
    }

    @Override
    public void write(DataOutput out) throws IOException {
      out.writeInt(index);
      out.writeLong(records);
    }

    @Override
    public void readFields(DataInput in) throws IOException {
      index = in.readInt();
      records = in.readLong();
    }
  }

  /** Gives every map an equal number of records. */
  public static final class Numbers extends InputFormat<NullWritable, NullWritable> {
    @Override
    public List<InputSplit> getSplits(JobContext context) {
      int maps = Math.max(1, context.getConfiguration().getInt(MRJobConfig.NUM_MAPS, 1));
      long records = context.getConfiguration().getLong(BYTES, 0) / RECORD_BYTES;
      List<InputSplit> parts = new ArrayList<>(maps);
      for (int index = 0; index < maps; index++) {
        parts.add(new Part(index, records * (index + 1) / maps - records * index / maps));
      }
      return parts;
    }

    @Override
    public RecordReader<NullWritable, NullWritable> createRecordReader(
        InputSplit split, TaskAttemptContext context) {
      return new Counter();
    }
  }

  /** Counts the records of a part. */
  static final class Counter extends RecordReader<NullWritable, NullWritable> {
    private long records;
    private long done;

    @Override
    public void initialize(InputSplit split, TaskAttemptContext context) {
      records = ((Part) split).records;
    }

    @Override
    public boolean nextKeyValue() {
      return done++ < records;
    }

    @Override
    public NullWritable getCurrentKey() {
      return NullWritable.get();
    }

    @Override
    public NullWritable getCurrentValue() {
      return NullWritable.get();
    }

    @Override
    public float getProgress() {
      return records == 0 ? 1 : Math.min(1, (float) done / records);
    }

    @Override
    public void close() {}
  }

  /** Generates the records. */
  public static final class Maker
      extends Mapper<NullWritable, NullWritable, BytesWritable, BytesWritable> {
    private final byte[] key = new byte[KEY_BYTES];
    private final byte[] value = new byte[RECORD_BYTES - KEY_BYTES];
    private final BytesWritable keyOut = new BytesWritable(key);
    private final BytesWritable valueOut = new BytesWritable(value);
    private final ByteBuffer random = ByteBuffer.allocate(RECORD_BYTES + Long.BYTES);
    private int randomBytes;
    private long state;

    @Override
    protected void setup(Context context) {
      Configuration conf = context.getConfiguration();
      double compressibility = Math.max(0, Math.min(1, conf.getDouble(COMPRESSIBILITY, 0)));
      randomBytes = (int) Math.round(value.length * (1 - compressibility));
      int index = ((Part) context.getInputSplit()).index;
      // Different even for similar seeds and parts, and never 0, from which the generator would not get away.
      state = mix(conf.getLong(SEED, 0) * 0x9E3779B97F4A7C15L + index + 1) | 1;
    }

    private static long mix(long bits) {
      bits = (bits ^ (bits >>> 30)) * 0xBF58476D1CE4E5B9L;
      bits = (bits ^ (bits >>> 27)) * 0x94D049BB133111EBL;
      return bits ^ (bits >>> 31);
    }

    @Override
    protected void map(NullWritable ignoredKey, NullWritable ignoredValue, Context context)
        throws IOException, InterruptedException {
      random.clear();
      while (random.position() < KEY_BYTES + randomBytes) {
        state ^= state << 13;
        state ^= state >>> 7;
        state ^= state << 17;
        random.putLong(state);
      }
      random.flip();
      random.get(key).get(value, 0, randomBytes);
      keyOut.set(key, 0, key.length);
      valueOut.set(value, 0, value.length);
      context.write(keyOut, valueOut);
    }
  }

  /** Discards all records. */
  public static final class Discarder
      extends Reducer<BytesWritable, BytesWritable, NullWritable, NullWritable> {
    @Override
    protected void reduce(BytesWritable key, Iterable<BytesWritable> values, Context context) {
      for (BytesWritable value : values) {
        if (value.getLength() != RECORD_BYTES - KEY_BYTES) {
          throw new IllegalStateException("a record has changed its size: " + value.getLength());
        }
      }
    }
  }
}
