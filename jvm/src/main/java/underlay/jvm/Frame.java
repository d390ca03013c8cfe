package underlay.jvm;

import java.io.EOFException;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.ReadableByteChannel;

/**
 * Reads frames from one connection, one at a time. The protocol is documented with the other side, in
 * {@code crates/systems/src/wire/mod.rs}.
 */
final class Frame {
    /** The longest body, which limits what a connection can make this process allocate. */
    static final int MAX_BYTES = 16 << 20;
    static final int MAX_SHORT = 0xFFFF;
    static final int LENGTH_BYTES = 4;

    private static final int FIRST_BYTES = 8 << 10;
    /** A longer buffer is released once its message has been handled. */
    private static final int KEPT_BYTES = 1 << 20;
    private static final VarHandle SHORT = view(short[].class);
    private static final VarHandle INT = view(int[].class);
    private static final VarHandle LONG = view(long[].class);

    private final ReadableByteChannel channel;
    private ByteBuffer received = ByteBuffer.allocate(FIRST_BYTES);
    /** {@code bytes()[start..end]} has been received and not returned yet. */
    private int start;
    private int end;

    /** The position of the last frame's body in {@link #bytes}. */
    int bodyStart;
    int bodyEnd;

    Frame(ReadableByteChannel channel) {
        this.channel = channel;
    }

    byte[] bytes() {
        return received.array();
    }

    /**
     * Waits for the next frame. Returns {@code false} if the stream ends between two frames. Memory grows with the bytes received, not
     * with the length that a frame claims.
     */
    boolean receive() throws IOException, MalformedFrame {
        while (true) {
            if (end - start >= LENGTH_BYTES) {
                int length = intAt(bytes(), start);
                if (length < 0 || length > MAX_BYTES) {
                    throw new MalformedFrame("a frame of " + Integer.toUnsignedString(length)
                            + " bytes is longer than the " + MAX_BYTES + " allowed");
                }
                if (end - start - LENGTH_BYTES >= length) {
                    bodyStart = start + LENGTH_BYTES;
                    bodyEnd = bodyStart + length;
                    start = bodyEnd;
                    return true;
                }
            }
            makeRoom();
            received.limit(received.capacity()).position(end);
            int count = channel.read(received);
            if (count < 0) {
                if (start == end) {
                    return false;
                }
                throw new EOFException("the connection ended inside a frame");
            }
            end += count;
        }
    }

    private void makeRoom() {
        int held = end - start;
        int capacity = received.capacity();
        if (held > capacity / 2) {
            capacity = 2 * capacity;
        } else if (capacity > KEPT_BYTES && held < KEPT_BYTES / 2) {
            capacity = FIRST_BYTES + 2 * held;
        }
        if (capacity != received.capacity()) {
            ByteBuffer other = ByteBuffer.allocate(capacity);
            System.arraycopy(bytes(), start, other.array(), 0, held);
            received = other;
        } else {
            System.arraycopy(bytes(), start, bytes(), 0, held);
        }
        start = 0;
        end = held;
    }

    static int shortAt(byte[] bytes, int at) {
        return (short) SHORT.get(bytes, at) & MAX_SHORT;
    }

    static int intAt(byte[] bytes, int at) {
        return (int) INT.get(bytes, at);
    }

    static long longAt(byte[] bytes, int at) {
        return (long) LONG.get(bytes, at);
    }

    static void putShort(byte[] bytes, int at, int value) {
        SHORT.set(bytes, at, (short) value);
    }

    static void putInt(byte[] bytes, int at, int value) {
        INT.set(bytes, at, value);
    }

    static void putLong(byte[] bytes, int at, long value) {
        LONG.set(bytes, at, value);
    }

    private static VarHandle view(Class<?> array) {
        return MethodHandles.byteArrayViewVarHandle(array, ByteOrder.LITTLE_ENDIAN);
    }
}
