package underlay.accumulo;

import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

import org.apache.accumulo.core.client.AccumuloClient;
import org.apache.accumulo.core.client.BatchWriter;
import org.apache.accumulo.core.client.BatchWriterConfig;
import org.apache.accumulo.core.client.MutationsRejectedException;
import org.apache.accumulo.core.data.Mutation;

/** The writers of all connections, and whether all of their writes have arrived. */
final class Writes {
    /** The buffer of a writer. It is sent when it is half full, after some fifty records of a kilobyte. */
    private static final long WRITER_BYTES = 128 << 10;

    private final String table;
    private final long timeoutMs;
    private final boolean batched;
    private final Set<Writer> open = ConcurrentHashMap.newKeySet();
    /** The first rejection of a write that had already been answered. */
    private final AtomicReference<Exception> lost = new AtomicReference<>();

    Writes(String table, long timeoutMs, boolean batched) {
        this.table = table;
        this.timeoutMs = timeoutMs;
        this.batched = batched;
    }

    /** Creates the writer of a connection. */
    Writer writer(AccumuloClient client) {
        return new Writer(client);
    }

    /** Waits until all writes so far are acknowledged. Throws if one was rejected. */
    void flush() throws Exception {
        for (Writer writer : open) {
            writer.flush();
        }
        Exception rejected = lost.get();
        if (rejected != null) {
            throw new IllegalStateException("writes were rejected after they had been answered", rejected);
        }
    }

    /** A batch writer, created for the first write since it has four threads. */
    final class Writer {
        private final AccumuloClient client;
        private BatchWriter writer;

        private Writer(AccumuloClient client) {
            this.client = client;
        }

        /** Waits until the server has acknowledged it, unless writes are batched. */
        synchronized void write(Mutation mutation) throws Exception {
            if (writer == null) {
                // Pending writes are sent when there are enough of them or when flushed, so no timer is needed.
                writer = client.createBatchWriter(table, new BatchWriterConfig().setMaxMemory(WRITER_BYTES)
                        .setMaxLatency(0, TimeUnit.MILLISECONDS).setMaxWriteThreads(1)
                        .setTimeout(timeoutMs, TimeUnit.MILLISECONDS));
                open.add(this);
            }
            try {
                writer.addMutation(mutation);
                if (!batched) {
                    writer.flush();
                }
            } catch (MutationsRejectedException | RuntimeException rejected) {
                fail(rejected);
                throw rejected;
            }
        }

        private synchronized void flush() {
            try {
                if (writer != null) {
                    writer.flush();
                }
            } catch (MutationsRejectedException | RuntimeException rejected) {
                fail(rejected);
            }
        }

        synchronized void close() {
            BatchWriter closing = writer;
            writer = null;
            try {
                if (closing != null) {
                    closing.close();
                }
            } catch (MutationsRejectedException | RuntimeException rejected) {
                note(rejected);
            }
            open.remove(this);
        }

        /** Replaces the batch writer: after a rejection it would repeat the error at every later write. */
        private void fail(Exception rejected) {
            note(rejected);
            BatchWriter closing = writer;
            writer = null;
            try {
                closing.close();
            } catch (MutationsRejectedException | RuntimeException known) {
                // The rejection has been reported already.
            }
            open.remove(this);
        }

        /** The callers of flushed writes have got the error themselves. */
        private void note(Exception rejected) {
            if (batched) {
                lost.compareAndSet(null, rejected);
            }
        }
    }
}
