package underlay.jvm;

import java.time.Duration;
import java.util.Map;

/**
 * What the client of a data system must do to be driven by underlay: the whole interface of this process. A driver has a
 * public constructor without parameters, and is named on the command line.
 *
 * <p>Whatever is thrown becomes the answer's error text; the process and the connection go on.
 */
public interface Driver {
    /** In the place of a field's index: all fields of the record. */
    int ALL_FIELDS = -1;

    /** Reaches the system. Called once, before anything else; what it throws ends the process. */
    void open(Map<String, String> properties) throws Exception;

    /**
     * A client of its own for one thread of the load generator. Called on the thread that will use it, before its first
     * operation. The options are those of this connection, none for most.
     */
    Connection connect(Map<String, String> options) throws Exception;

    /** Running totals, and states of the moment under names that begin with {@code current_}. */
    default Map<String, Double> figures() throws Exception {
        return Map.of();
    }

    /** Those of the figures that say how much runs in the background. Asked for again and again while it is measured: quickly told. */
    default Map<String, Double> gauges() throws Exception {
        return Map.of();
    }

    /** Brings the data to the state that measurements start from, or throws when that takes longer than {@code limit}. */
    default void settle(Duration limit) throws Exception {
    }

    /** Something that this driver alone knows how to do. */
    default String command(String name, String argument, Duration limit) throws Exception {
        throw new UnsupportedOperationException("there is no command '" + name + "'");
    }

    /** Called once, after every connection has been closed. */
    void close() throws Exception;

    /** One client, used by one thread. A call returns when the system has answered. */
    interface Connection {
        /** Adds the wanted fields of a record to {@code into}, which is empty, in the order of their indices. */
        Outcome read(byte[] key, int field, Values into) throws Exception;

        /** Reads up to {@code limit} records in key order from {@code start} on: how many there were. */
        int scan(byte[] start, int limit, int field) throws Exception;

        /**
         * As {@link #scan}, and adds each record to {@code into}: its key as {@link Values#RECORD_KEY}, then the wanted
         * fields. It is asked for where values are checked.
         */
        default int scanRecords(byte[] start, int limit, int field, Values into) throws Exception {
            throw new UnsupportedOperationException("this system counts what it scans and does not give it: ask for a mix"
                    + " without scans, or leave dataintegrity out");
        }

        /** Writes these fields and leaves others as they are. May create a record that is not there. */
        Outcome update(byte[] key, Values values) throws Exception;

        /** Writes a whole record. */
        Outcome insert(byte[] key, Values values) throws Exception;

        /** Need not look whether the record was there. */
        Outcome delete(byte[] key) throws Exception;

        void close() throws Exception;
    }

    /** How an operation ended that the system answered. */
    enum Outcome {
        /** Done; the record was there. */
        FOUND,
        /** No such record. */
        MISSING,
        /** Refused because of load. */
        THROTTLED
    }
}
