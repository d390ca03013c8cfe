package underlay.je;

import java.io.File;
import java.time.Duration;
import java.util.Map;

import com.sleepycat.je.Database;
import com.sleepycat.je.Environment;

import underlay.jvm.Driver;
import underlay.jvm.Values;

/**
 * Berkeley DB JE in this process. Properties: {@code home}, the directory of the environment; {@code fields}, how many a record has;
 * {@code durability} of a commit; and JE's own parameters by their names, {@code je.*}.
 */
public final class EmbeddedDriver implements Driver {
    private Records.Store store;
    private int fields;

    @Override
    public void open(Map<String, String> properties) {
        fields = Integer.parseInt(Configuration.required(properties, "fields"));
        Environment environment = new Environment(new File(Configuration.required(properties, "home")),
                Configuration.environment(properties));
        Database database = environment.openDatabase(null, Configuration.DATABASE, Configuration.database());
        store = new Records.Store(environment, database);
    }

    @Override
    public Driver.Connection connect(Map<String, String> options) {
        return new Client(store, fields);
    }

    @Override
    public Map<String, Double> figures() {
        return EnvironmentFigures.all(store.environment());
    }

    @Override
    public Map<String, Double> gauges() {
        return EnvironmentFigures.gauges(store.environment());
    }

    @Override
    public void settle(Duration limit) {
        Settling.settle(store.environment(), limit);
    }

    /** JE would give up its environment, which is yet to be closed. */
    @Override
    public boolean mayBeInterrupted() {
        return false;
    }

    @Override
    public void close() {
        try {
            store.database().close();
        } finally {
            store.environment().close();
        }
    }

    private record Client(Records.Store store, Records records) implements Driver.Connection {
        Client(Records.Store store, int fields) {
            this(store, new Records(fields));
        }

        @Override
        public Outcome read(byte[] key, int field, Values into) {
            return records.read(store, key, field, into);
        }

        @Override
        public int scan(byte[] start, int limit, int field) {
            return records.scan(store, start, limit, field, null);
        }

        @Override
        public int scanRecords(byte[] start, int limit, int field, Values into) {
            return records.scan(store, start, limit, field, into);
        }

        @Override
        public Outcome update(byte[] key, Values values) {
            records.update(store, key, values);
            return Outcome.FOUND;
        }

        @Override
        public Outcome insert(byte[] key, Values values) {
            records.insert(store, key, values);
            return Outcome.FOUND;
        }

        @Override
        public Outcome delete(byte[] key) {
            return records.delete(store, key);
        }

        @Override
        public void close() {
            // The environment outlives its connections, which hold nothing in it.
        }
    }
}
