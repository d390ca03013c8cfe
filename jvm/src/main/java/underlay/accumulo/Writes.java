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

/** The writers of all connections, and whether all of what they took has arrived. */
final class Writes {
    /** Sent on when it is half full: some fifty records of a kilobyte. */
    private static final long WRITER_BYTES = 128 << 10;

    private final String table;
    private final long timeoutMs;
    private final boolean batched;
    private final Set<Writer> open = ConcurrentHashMap.newKeySet();
    /** The first rejection of a write that had been answered. */
    private final AtomicReference<Exception> lost = new AtomicReference<>();

    Writes(String table, long timeoutMs, boolean batched) {
        this.table = table;
        this.timeoutMs = timeoutMs;
        this.batched = batched;
    }

    /** A writer for one connection. */
    Writer writer(AccumuloClient client) {
        return new Writer(client);
    }

    /** Returns when everything that was taken so far is acknowledged, and throws when something never will be. */
    void flush() throws Exception {
        for (Writer writer : open) {
            writer.flush();
        }
        Exception rejected = lost.get();
        if (rejected != null) {
            throw new IllegalStateException("writes that had been taken were rejected later", rejected);
        }
    }

    /** One batch writer, made for the first write: it has four threads. */
    final class Writer {
        private final AccumuloClient client;
        private BatchWriter writer;

        private Writer(AccumuloClient client) {
            this.client = client;
        }

        /** Returns when the server has acknowledged it, unless writes are batched. */
        synchronized void write(Mutation mutation) throws Exception {
            if (writer == null) {
                // What waits is sent when it is enough, or flushed: no timer need look for it.
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

        /** After a rejection the batch writer would repeat it at every later write: it is made anew. */
        private void fail(Exception rejected) {
            note(rejected);
            BatchWriter closing = writer;
            writer = null;
            try {
                closing.close();
            } catch (MutationsRejectedException | RuntimeException known) {
                // What is rejected has been told already.
            }
            open.remove(this);
        }

        /** Of writes that are flushed, whoever made them has been told by themselves. */
        private void note(Exception rejected) {
            if (batched) {
                lost.compareAndSet(null, rejected);
            }
        }
    }
}
