package underlay.jvm;

/** Bytes that are not a valid message. Since the position of the next one is unknown, the connection ends. */
final class MalformedFrame extends Exception {
    private static final long serialVersionUID = 1;

    MalformedFrame(String problem) {
        super(problem, null, false, false);
    }

    static MalformedFrame truncated(String part) {
        return new MalformedFrame("the frame ends inside its " + part);
    }
}
