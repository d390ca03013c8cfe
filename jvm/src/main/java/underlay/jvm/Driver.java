package underlay.jvm;

import java.time.Duration;
import java.util.Map;

/**
 * The interface between underlay and the client of a data system. A driver has a public constructor without parameters and is
 * named on the command line.
 *
 * <p>Exceptions become the error text of the answer; the process and the connection continue.
 */
public interface Driver {
    /** Stands for all fields of a record, instead of a field's index. */
    int ALL_FIELDS = -1;

    /** Connects to the system. Called once, before anything else. An exception ends the process. */
    void open(Map<String, String> properties) throws Exception;

    /**
     * Creates a client for one thread of the load generator. Called on the thread that will use it, before its first operation. The
     * options are those of this connection; most have none.
     */
    Connection connect(Map<String, String> options) throws Exception;

    /** Running totals, and current states under names that start with {@code current_}. */
    default Map<String, Double> figures() throws Exception {
        return Map.of();
    }

    /** The figures that say how much is running in the background. They are polled during measurements, so they must be fast. */
    default Map<String, Double> gauges() throws Exception {
        return Map.of();
    }

    /** Brings the data to the state that measurements start from. Throws if that takes longer than {@code limit}. */
    default void settle(Duration limit) throws Exception {
    }

    /** A command that is specific to this driver. */
    default String command(String name, String argument, Duration limit) throws Exception {
        throw new UnsupportedOperationException("there is no command '" + name + "'");
    }

    /** Whether threads whose operations do not end in time may be interrupted before the driver is closed. */
    default boolean mayBeInterrupted() {
        return true;
    }

    /** Called once, after every connection has been closed. */
    void close() throws Exception;

    /**
     * One client, used by one thread. A call returns when the system has answered. It throws {@link NotDone} if it is certain that the
     * operation had no effect and never will have.
     */
    interface Connection {
        /** Adds the requested fields of a record to {@code into}, which is empty, ordered by index. */
        Outcome read(byte[] key, int field, Values into) throws Exception;

        /** Reads up to {@code limit} records in key order, beginning at {@code start}. Returns how many there were. */
        int scan(byte[] start, int limit, int field) throws Exception;

        /**
         * Like {@link #scan}, and adds each record to {@code into}: its key as {@link Values#RECORD_KEY}, then the requested fields.
         * Used when values are verified.
         */
        default int scanRecords(byte[] start, int limit, int field, Values into) throws Exception {
            throw new UnsupportedOperationException("this system only counts what it scans and can't return it: use a mix"
                    + " without scans, or leave dataintegrity out");
        }

        /** Writes these fields and keeps the others. May create a record that does not exist. */
        Outcome update(byte[] key, Values values) throws Exception;

        /** Writes a whole record. */
        Outcome insert(byte[] key, Values values) throws Exception;

        /** Need not check whether the record exists. */
        Outcome delete(byte[] key) throws Exception;

        void close() throws Exception;
    }

    /** The outcome of an operation that the system has answered. */
    enum Outcome {
        /** Done; the record was there. */
        FOUND,
        /** No such record. */
        MISSING,
        /** Rejected because of load. */
        THROTTLED
    }
}
