import java.io.IOException;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Writes objects into a directory by S3A, renames the directory, and looks at what is there then. Arguments: how many objects, and
 * settings of Hadoop's as NAME=VALUE.
 */
public final class RenamesADirectory {
    private static final int WRITERS = 16;
    private static final Path OLD = new Path("s3a://lake/work/old");
    private static final Path NEW = new Path("s3a://lake/work/new");

    private RenamesADirectory() {}

    public static void main(String[] arguments) throws Exception {
        int count = Integer.parseInt(arguments[0]);
        Configuration configuration = new Configuration();
        for (String setting : List.of(arguments).subList(1, arguments.length)) {
            String[] pair = setting.split("=", 2);
            configuration.set(pair[0], pair[1]);
        }
        try (FileSystem files = FileSystem.get(URI.create("s3a://lake/"), configuration)) {
            write(files, count);
            check(files.rename(OLD, NEW), "the rename was refused");
            int there = files.listStatus(NEW).length;
            check(there == count, there + " objects are in the new directory");
            check(!files.exists(OLD), "the old directory is still there");
            for (int at : new int[] {0, count / 2, count - 1}) {
                try (FSDataInputStream input = files.open(new Path(NEW, name(at)))) {
                    check(new String(input.readAllBytes(), StandardCharsets.UTF_8).equals(content(at)), name(at) + " has other bytes");
                }
            }
        }
    }

    private static void write(FileSystem files, int count) throws Exception {
        ExecutorService writers = Executors.newFixedThreadPool(WRITERS);
        List<Future<Void>> writes = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            int at = number;
            writes.add(writers.submit(() -> {
                try (FSDataOutputStream output = files.create(new Path(OLD, name(at)), true)) {
                    output.write(content(at).getBytes(StandardCharsets.UTF_8));
                }
                return null;
            }));
        }
        writers.shutdown();
        for (Future<Void> write : writes) {
            write.get();
        }
    }

    /** The test knows them by this. */
    private static String name(int at) {
        return "part-" + at;
    }

    private static String content(int at) {
        return ("object " + at + "\n").repeat(20);
    }

    private static void check(boolean isSo, String otherwise) throws IOException {
        if (!isSo) {
            throw new IOException(otherwise);
        }
    }
}
