package underlay.jvm;

/** Bytes that are no message. The place of the next one is no longer certain, so the connection ends. */
final class MalformedFrame extends Exception {
    private static final long serialVersionUID = 1;

    MalformedFrame(String problem) {
        super(problem, null, false, false);
    }

    static MalformedFrame truncated(String part) {
        return new MalformedFrame("the frame ends inside its " + part);
    }
}
