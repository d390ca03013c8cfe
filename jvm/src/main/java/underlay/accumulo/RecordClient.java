package underlay.accumulo;

import java.util.Arrays;
import java.util.Map.Entry;
import java.util.concurrent.TimeUnit;

import org.apache.accumulo.core.client.AccumuloClient;
import org.apache.accumulo.core.client.Scanner;
import org.apache.accumulo.core.data.ByteSequence;
import org.apache.accumulo.core.data.Key;
import org.apache.accumulo.core.data.Mutation;
import org.apache.accumulo.core.data.Range;
import org.apache.accumulo.core.data.Value;
import org.apache.accumulo.core.security.Authorizations;
import org.apache.hadoop.io.Text;
import underlay.jvm.Driver;
import underlay.jvm.Values;

/** One client, with its own writer and a scanner per read. */
final class RecordClient implements Driver.Connection {
    /** The maximum number of entries per request. Servers also have a limit in bytes. */
    private static final int MAX_BATCH = 10_000;

    private final AccumuloClient client;
    private final RecordTable table;
    private final Authorizations authorizations;
    private final long timeoutMs;
    private final Writes.Writer writer;

    RecordClient(AccumuloClient client, RecordTable table, Authorizations authorizations, long timeoutMs,
            Writes.Writer writer) {
        this.client = client;
        this.table = table;
        this.authorizations = authorizations;
        this.timeoutMs = timeoutMs;
        this.writer = writer;
    }

    @Override
    public Driver.Outcome read(byte[] key, int field, Values into) throws Exception {
        boolean any = readRow(key, field, into);
        if (!any && field != Driver.ALL_FIELDS) {
            // A record without this field still exists.
            any = readRow(key, Driver.ALL_FIELDS, new Values());
        }
        return any ? Driver.Outcome.FOUND : Driver.Outcome.MISSING;
    }

    /** Returns whether there was any entry. */
    private boolean readRow(byte[] key, int field, Values into) throws Exception {
        byte[][] found = new byte[table.fields][];
        boolean any = false;
        // One more than there are, so that the first answer is also the last.
        try (Scanner scanner = scanner(table.entries(field) + 1)) {
            scanner.setRange(Range.exact(new Text(key)));
            fetch(scanner, field);
            for (Entry<Key, Value> entry : scanner) {
                any = true;
                int index = RecordTable.field(entry.getKey().getColumnQualifierData().toArray());
                if (index >= found.length) {
                    found = Arrays.copyOf(found, index + 1);
                }
                if (index >= 0) {
                    found[index] = entry.getValue().get();
                }
            }
        }
        // They arrive in the order of their names: field10 before field2.
        for (int index = 0; index < found.length; index++) {
            if (found[index] != null) {
                into.add(index, found[index]);
            }
        }
        return any;
    }

    private void fetch(Scanner scanner, int field) {
        if (field == Driver.ALL_FIELDS) {
            scanner.fetchColumnFamily(table.family());
        } else {
            scanner.fetchColumn(table.family(), table.qualifier(field));
        }
    }

    @Override
    public int scan(byte[] start, int limit, int field) throws Exception {
        return scan(start, limit, field, null);
    }

    @Override
    public int scanRecords(byte[] start, int limit, int field, Values into) throws Exception {
        return scan(start, limit, field, into);
    }

    /** Adds the records to {@code into} unless that is null. */
    private int scan(byte[] start, int limit, int field, Values into) throws Exception {
        if (limit == 0) {
            return 0;
        }
        int entries = table.entries(field);
        int records = 0;
        int ofLast = 0;
        ByteSequence last = null;
        try (Scanner scanner = scanner((int) Math.min((long) limit * entries + 1, MAX_BATCH))) {
            scanner.setRange(new Range(new Text(start), true, null, false));
            fetch(scanner, field);
            if (table.scanFilter() != null) {
                scanner.addScanIterator(table.scanFilter());
            }
            for (Entry<Key, Value> entry : scanner) {
                ByteSequence row = entry.getKey().getRowData();
                if (!row.equals(last)) {
                    if (records == limit) {
                        break;
                    }
                    records++;
                    last = row;
                    ofLast = 0;
                    if (into != null) {
                        into.add(Values.RECORD_KEY, row.toArray());
                    }
                }
                ofLast++;
                if (into != null) {
                    int index = RecordTable.field(entry.getKey().getColumnQualifierData().toArray());
                    if (index >= 0) {
                        into.add(index, entry.getValue().get());
                    }
                }
                // Looking beyond the last record could take another request.
                if (records == limit && ofLast == entries) {
                    break;
                }
            }
        }
        return records;
    }

    private Scanner scanner(int batch) throws Exception {
        Scanner scanner = client.createScanner(table.name, authorizations);
        scanner.setBatchSize(batch);
        scanner.setTimeout(timeoutMs, TimeUnit.MILLISECONDS);
        return scanner;
    }

    @Override
    public Driver.Outcome update(byte[] key, Values values) throws Exception {
        return write(table.update(key, values));
    }

    @Override
    public Driver.Outcome insert(byte[] key, Values values) throws Exception {
        return write(table.insert(key, values));
    }

    @Override
    public Driver.Outcome delete(byte[] key) throws Exception {
        return write(table.delete(key));
    }

    private Driver.Outcome write(Mutation mutation) throws Exception {
        if (mutation != null) {
            writer.write(mutation);
        }
        return Driver.Outcome.FOUND;
    }

    @Override
    public void close() {
        writer.close();
    }
}
