package underlay.jvm;

import java.util.Arrays;

/**
 * The fields of one record, each with its index and bytes, in the encoding of a message. A received field is copied at most once, and
 * an added one is written directly to the buffer that is sent.
 */
public final class Values {
    /** Instead of a field's index: the key of the record whose fields follow. */
    public static final int RECORD_KEY = Frame.MAX_SHORT;

    private static final int COUNT_BYTES = 2;
    private static final int ENTRY_HEAD_BYTES = 6;
    private static final int FIRST_BYTES = 256;

    private byte[] own = new byte[FIRST_BYTES];
    /** Either {@code own}, or the frame that the fields came in. */
    private byte[] bytes = own;
    private int start;
    private int end = COUNT_BYTES;
    /** The start of each field's value. */
    private int[] values = new int[16];
    private int count;

    /** How many fields there are. */
    public int size() {
        return count;
    }

    /** The index of the field at this position, 0 to 65535. */
    public int field(int place) {
        return Frame.shortAt(bytes, value(place) - ENTRY_HEAD_BYTES);
    }

    /** A copy of the value of the field at this position. */
    public byte[] copy(int place) {
        int from = value(place);
        return Arrays.copyOfRange(bytes, from, from + length(place));
    }

    /** The length of the value at this position. */
    public int length(int place) {
        return Frame.intAt(bytes, value(place) - 4);
    }

    /** Whether each field comes after the one before it, so that none is there twice. */
    public boolean isOrdered() {
        for (int place = 1; place < count; place++) {
            if (field(place) <= field(place - 1)) {
                return false;
            }
        }
        return true;
    }

    /** A copy of all fields in the encoding of a message. */
    public byte[] toBytes() {
        byte[] copy = new byte[encodedBytes()];
        encode(copy, 0);
        return copy;
    }

    /** Appends a field. */
    public void add(int field, byte[] value) {
        add(field, value, 0, value.length);
    }

    /** Appends a field whose value is a part of {@code source}. */
    public void add(int field, byte[] source, int offset, int length) {
        if (field < 0 || field > Frame.MAX_SHORT) {
            throw new IllegalArgumentException("field " + field + " is beyond the last possible, 65535");
        }
        if (count == Frame.MAX_SHORT) {
            throw new IllegalArgumentException(
                    "a message holds 65535 fields at most, keys of records among them: ask for fewer at once");
        }
        if (length > Frame.MAX_BYTES - (end - start)) {
            throw new IllegalArgumentException("the record is longer than the " + Frame.MAX_BYTES + " bytes of a message");
        }
        reserve(ENTRY_HEAD_BYTES + length);
        Frame.putShort(bytes, end, field);
        Frame.putInt(bytes, end + 2, length);
        end += ENTRY_HEAD_BYTES;
        note(end);
        System.arraycopy(source, offset, bytes, end, length);
        end += length;
    }

    /** Appends all fields of {@code others}. */
    public void addAll(Values others) {
        addRange(others, 0, others.size());
    }

    /** Appends the fields at the positions from {@code first} to {@code end}, without that one. */
    public void addRange(Values others, int first, int end) {
        for (int place = first; place < end; place++) {
            add(others.field(place), others.bytes, others.value(place), others.length(place));
        }
    }

    void clear() {
        bytes = own;
        start = 0;
        end = COUNT_BYTES;
        count = 0;
    }

    /** Sets these to the fields in {@code frame[from..to]}, which must be exactly one list of fields. */
    void read(byte[] frame, int from, int to) throws MalformedFrame {
        clear();
        bytes = frame;
        start = from;
        end = to;
        if (to - from < COUNT_BYTES) {
            throw MalformedFrame.truncated("count of fields");
        }
        int expected = Frame.shortAt(frame, from);
        int at = from + COUNT_BYTES;
        for (int i = 0; i < expected; i++) {
            if (to - at < ENTRY_HEAD_BYTES) {
                throw MalformedFrame.truncated("length of a field");
            }
            int length = Frame.intAt(frame, at + 2);
            at += ENTRY_HEAD_BYTES;
            if (length < 0 || length > to - at) {
                throw MalformedFrame.truncated("field");
            }
            note(at);
            at += length;
        }
        if (at != to) {
            throw new MalformedFrame((to - at) + " bytes are left over at the frame's end");
        }
    }

    /** The length of the encoded form. */
    int encodedBytes() {
        return end - start;
    }

    /** Writes the encoded form to {@code out[at..]}. */
    void encode(byte[] out, int at) {
        System.arraycopy(bytes, start, out, at, end - start);
        Frame.putShort(out, at, count);
    }

    private int value(int place) {
        if (place < 0 || place >= count) {
            throw new IndexOutOfBoundsException(place);
        }
        return values[place];
    }

    private void note(int value) {
        if (count == values.length) {
            values = Arrays.copyOf(values, 2 * count);
        }
        values[count++] = value;
    }

    private void reserve(int more) {
        if (bytes != own) {
            throw new IllegalStateException("the fields of a request can't be added to");
        }
        if (own.length - end < more) {
            own = Arrays.copyOf(own, Math.max(2 * own.length, end + more));
            bytes = own;
        }
    }
}
