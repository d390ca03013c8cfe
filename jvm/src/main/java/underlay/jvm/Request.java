package underlay.jvm;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;

/** A parsed request. One object is reused for all of them, and its values stay in the frame. */
final class Request {
    static final int PING = 1;
    static final int READ = 2;
    static final int SCAN = 3;
    static final int UPDATE = 4;
    static final int INSERT = 5;
    static final int DELETE = 6;
    static final int FIGURES = 7;
    static final int SETTLE = 8;
    static final int STOP = 9;
    static final int OPEN = 10;
    static final int COMMAND = 11;
    static final int GAUGES = 12;
    static final int SCAN_RECORDS = 13;

    private static final int HEAD_BYTES = 4 + 1 + 4 + 8 + 2;

    int id;
    int opcode;
    /** For reads and scans: the requested field, or {@link Driver#ALL_FIELDS}. */
    int field;
    byte[] key;
    final Values values = new Values();
    private long number;

    /** Parses the body of a frame. The id is set even if it is malformed, to 0 if it has none. */
    void decode(byte[] frame, int from, int to) throws MalformedFrame {
        id = to - from < 4 ? 0 : Frame.intAt(frame, from);
        if (to - from < HEAD_BYTES) {
            throw MalformedFrame.truncated("head");
        }
        opcode = frame[from + 4] & 0xFF;
        if (opcode < PING || opcode > SCAN_RECORDS) {
            throw new MalformedFrame("unknown opcode " + opcode);
        }
        int selector = Frame.intAt(frame, from + 5);
        // No record has fields beyond the range of an int, so that none is found, as it should be.
        field = selector < Driver.ALL_FIELDS ? Integer.MAX_VALUE : selector;
        number = Frame.longAt(frame, from + 9);
        int keyBytes = Frame.shortAt(frame, from + 17);
        int valuesAt = from + HEAD_BYTES + keyBytes;
        if (valuesAt > to) {
            throw MalformedFrame.truncated("key");
        }
        key = Arrays.copyOfRange(frame, from + HEAD_BYTES, valuesAt);
        values.read(frame, valuesAt, to);
    }

    /** For scans: the maximum number of records. */
    int most() {
        return number < 0 || number > Integer.MAX_VALUE ? Integer.MAX_VALUE : (int) number;
    }

    /** For settling and commands: how long it may take. */
    Duration limit() {
        return Duration.ofMillis(number < 0 ? Long.MAX_VALUE / 2 : number);
    }

    String keyText() {
        return new String(key, StandardCharsets.UTF_8);
    }

    /** The value at this position as text; empty if there is none. */
    String text(int place) {
        return place < values.size() ? new String(values.copy(place), StandardCharsets.UTF_8) : "";
    }

    /** For opening a connection: names and values alternate. */
    Map<String, String> options() {
        Map<String, String> options = new HashMap<>();
        for (int place = 0; place + 1 < values.size(); place += 2) {
            options.put(text(place), text(place + 1));
        }
        return options;
    }
}
